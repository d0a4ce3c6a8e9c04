import pytest

from punica_serve.adapters.pool_fit import check_dummies_fit_pool, check_fits_pool
from punica_serve.base_model.lora_layout import USUAL_LIMITS, LoraLimits
from punica_serve.base_model.memory_budget import auto_lora_pages
from punica_serve.config.dummy_adapters_section import DummyAdaptersConfig
from punica_serve.errors import AdapterRejected, ConfigError
from punica_serve.protocol import AdapterRef

REF = AdapterRef("d", "/d", 1, {"q_proj": 4, "down_proj": 17})


def test_one_that_just_fits_is_taken() -> None:
    check_fits_pool(REF, 3, USUAL_LIMITS)


def test_one_that_no_pool_could_hold_is_refused_with_the_fix() -> None:
    with pytest.raises(AdapterRejected, match=r"3 pages of down, .* has 2; .* `engine\.num_lora_pages` to 3 or more"):
        check_fits_pool(REF, 2, USUAL_LIMITS)


def test_the_highest_rank_fits_the_pages_that_auto_takes_in_the_head_too() -> None:
    limits = LoraLimits(256, vocabulary=True)
    check_fits_pool(AdapterRef("d", "/d", 1, {"lm_head": 256}), auto_lora_pages(4, 16, limits), limits)


@pytest.mark.parametrize(("count", "num_lora_pages"), [(1, 3), (0, 1)])
def test_dummies_that_fit_or_are_none_are_taken(count: int, num_lora_pages: int) -> None:
    check_dummies_fit_pool(DummyAdaptersConfig(count=count, rank=(17,)), num_lora_pages, USUAL_LIMITS)


@pytest.mark.parametrize("rank", [(17,), (8, 17, 16)])
def test_dummies_that_no_pool_could_hold_are_refused_with_the_fix(rank: tuple[int, ...]) -> None:
    message = r"`dummy_adapters\.rank`: .* rank 17 take 3 pages .* has 2; .* `engine\.num_lora_pages` to 3 or more"
    with pytest.raises(ConfigError, match=message):
        check_dummies_fit_pool(DummyAdaptersConfig(count=1, rank=rank), 2, USUAL_LIMITS)


def test_adapters_beyond_the_limits_are_refused_by_field() -> None:
    with pytest.raises(AdapterRejected, match=r"rank 17 in down_proj, and `engine\.max_lora_rank` is 16") as caught:
        check_fits_pool(REF, 64, LoraLimits(16))
    assert caught.value.param == "r"
    head = AdapterRef("d", "/d", 1, {"lm_head": 4})
    with pytest.raises(AdapterRejected, match=r"updates lm_head, and `engine\.lora_vocabulary` is false") as caught:
        check_fits_pool(head, 64, USUAL_LIMITS)
    assert caught.value.param == "target_modules"
    check_fits_pool(head, 64, LoraLimits(vocabulary=True))


def test_dummies_beyond_the_highest_rank_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"`dummy_adapters\.rank`: 200 is more than `engine\.max_lora_rank`, 128"):
        check_dummies_fit_pool(DummyAdaptersConfig(count=1, rank=(8, 200)), 64, USUAL_LIMITS)
