import pytest

from punica_serve.base_model.lora_layout import least_lora_pages, pages_needed, pool_pages
from punica_serve.protocol import LoraGroup


@pytest.mark.parametrize(
    ("ranks", "pages"),
    [
        ({}, {}),
        ({"q_proj": 1}, {"qkv": 1}),
        ({"q_proj": 8, "v_proj": 9}, {"qkv": 2}),
        ({"o_proj": 16, "down_proj": 17, "up_proj": 64}, {"o": 2, "gate_up": 8, "down": 3}),
        ({"qkv_proj": 9, "o_proj": 8, "gate_up_proj": 17, "down_proj": 1}, {"qkv": 2, "o": 1, "gate_up": 3, "down": 1}),
    ],
)
def test_an_adapter_takes_the_pages_of_its_highest_rank_in_each_group(
    ranks: dict[str, int], pages: dict[str, int]
) -> None:
    assert pages_needed(ranks) == pages


@pytest.mark.parametrize("group", pool_pages(1))
@pytest.mark.parametrize("num_pages", [1, 8, 32, 33, 200])
def test_the_least_pool_with_so_many_pages_of_a_group(group: LoraGroup, num_pages: int) -> None:
    least = least_lora_pages(group, num_pages)
    assert pool_pages(least)[group] >= num_pages > pool_pages(least - 1)[group]
