import pytest

from punica_serve.adapters.pool_fit import check_dummies_fit_pool, check_fits_pool
from punica_serve.config.dummy_adapters_section import DummyAdaptersConfig
from punica_serve.errors import AdapterRejected, ConfigError
from punica_serve.protocol import AdapterRef

REF = AdapterRef("d", "/d", 1, {"q_proj": 4, "down_proj": 17})


def test_one_that_just_fits_is_taken() -> None:
    check_fits_pool(REF, 3)


def test_one_that_no_pool_could_hold_is_refused_with_the_fix() -> None:
    with pytest.raises(AdapterRejected, match=r"3 pages of down, .* has 2; .* `engine\.num_lora_pages` to 3 or more"):
        check_fits_pool(REF, 2)


@pytest.mark.parametrize(("count", "num_lora_pages"), [(1, 3), (0, 1)])
def test_dummies_that_fit_or_are_none_are_taken(count: int, num_lora_pages: int) -> None:
    check_dummies_fit_pool(DummyAdaptersConfig(count=count, rank=(17,)), num_lora_pages)


@pytest.mark.parametrize("rank", [(17,), (8, 17, 16)])
def test_dummies_that_no_pool_could_hold_are_refused_with_the_fix(rank: tuple[int, ...]) -> None:
    message = r"`dummy_adapters\.rank`: .* rank 17 take 3 pages .* has 2; .* `engine\.num_lora_pages` to 3 or more"
    with pytest.raises(ConfigError, match=message):
        check_dummies_fit_pool(DummyAdaptersConfig(count=1, rank=rank), 2)
