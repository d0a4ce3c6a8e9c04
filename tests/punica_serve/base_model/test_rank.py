from dataclasses import replace

import pytest

from punica_serve.base_model.rank import SINGLE, Rank
from punica_serve.errors import ConfigError
from punica_serve.shapes import shape_of
from tiny_config import tiny_config


def test_ranks_share_everything_once_and_in_order() -> None:
    parts = [Rank(index, 4).share(8, width=3) for index in range(4)]
    assert [number for part in parts for number in part] == list(range(24))


def test_ranks_share_a_thing_if_there_are_fewer_than_ranks() -> None:
    assert [Rank(index, 4).share(2, width=8) for index in range(4)] == [*[range(8)] * 2, *[range(8, 16)] * 2]


@pytest.mark.parametrize(("total", "size"), [(99, 2), (128_256, 8), (17, 3), (64, 8)])
def test_blocks_are_whole_but_for_the_last_and_shared_evenly(total: int, size: int) -> None:
    parts = [Rank(index, size).blocks(total, 8) for index in range(size)]
    assert [number for part in parts for number in part] == list(range(total))
    assert all(part.start % 8 == 0 for part in parts)
    assert max(map(len, parts)) - min(map(len, parts)) < 16


def test_a_rank_is_one_of_its_group() -> None:
    with pytest.raises(ValueError, match="rank 2 is not in a group of 2"):
        Rank(2, 2)


def test_a_share_has_its_own_shapes() -> None:
    share = shape_of("llama-3.1-70b").shard(Rank(1, 8))
    assert share.linear_shapes == {
        "q_proj": (1024, 8192),
        "k_proj": (128, 8192),
        "v_proj": (128, 8192),
        "o_proj": (8192, 1024),
        "gate_proj": (3584, 8192),
        "up_proj": (3584, 8192),
        "down_proj": (8192, 3584),
    }
    assert share.vocabulary == range(16_032, 32_064)
    assert share.whole == shape_of("llama-3.1-70b") == share.whole.whole


def test_a_group_of_one_has_the_model_itself() -> None:
    model = tiny_config()
    assert model.shard(SINGLE) is model is model.whole


def test_all_that_does_not_divide_is_named_with_the_sizes_that_work() -> None:
    message = (
        r"a group of 3 ranks can't divide this model: `num_attention_heads` of 4 is no multiple of 3;"
        r" `intermediate_size` of 40 is no multiple of 3; `num_key_value_heads` of 2 is neither a multiple nor a"
        r" divisor of 3\. Groups of 1, 2, 4 can"
    )
    with pytest.raises(ConfigError, match=message) as caught:
        tiny_config().shard(Rank(0, 3))
    assert caught.value.param == "runner.tensor_parallel"


def test_ranks_that_divide_a_must_divide_the_inputs_of_a_layer() -> None:
    model = replace(tiny_config(), hidden_size=26)
    model.shard(Rank(0, 4))
    with pytest.raises(ConfigError, match=r"`hidden_size` of 26 is no multiple of 4; drop `engine.divide_lora_from`"):
        model.shard(Rank(0, 4), divides_lora=True)


def test_each_rank_needs_a_block_of_tokens() -> None:
    with pytest.raises(
        ConfigError, match=r"`vocab_size` of 9 has fewer than 8 tokens for each rank\. Groups of 1, 2 can"
    ):
        tiny_config(vocab_size=9).shard(Rank(0, 4))
