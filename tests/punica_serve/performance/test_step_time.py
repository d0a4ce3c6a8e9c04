import pytest

from punica_serve.performance.lora_load import NO_LORA, LoraLoad
from punica_serve.performance.lora_times import DistinctLora, LoraTimes, PaddedLora, UnpaddedLora
from punica_serve.performance.profile import PerformanceProfile
from punica_serve.performance.step_time import StepTimeModel


def _ms(
    profile: PerformanceProfile, *, prefill: int = 0, decodes: int = 0, context: int = 0, lora: LoraLoad = NO_LORA
) -> float:
    return 1e3 * StepTimeModel(profile).step_s(prefill, decodes, context, lora)


def test_between_measured_points_times_are_linear(profile: PerformanceProfile) -> None:
    assert _ms(profile, prefill=1) == pytest.approx(11.0)
    assert _ms(profile, prefill=51) == pytest.approx(61.0)
    assert _ms(profile, decodes=1, context=60) == pytest.approx(11.5)
    assert _ms(profile, decodes=11, context=11 * 10) == pytest.approx(21.0)
    assert _ms(profile, decodes=6, context=6 * 60) == pytest.approx((11.5 + 26.0) / 2)


def test_beyond_the_last_point_times_go_on_as_before_it(profile: PerformanceProfile) -> None:
    assert _ms(profile, prefill=200) == pytest.approx(210.0)
    assert _ms(profile, decodes=11, context=11 * 210) == pytest.approx(41.0)
    assert _ms(profile, decodes=21, context=21 * 10) == pytest.approx(31.0)


#: Three rows of ranks 8, 8 and 64, the first two with one adapter on all seven projections.
_MIXED = LoraLoad(num_rows=3, sum_ranks=80, max_rank=64, num_pages=4 + 32)


@pytest.mark.parametrize(
    ("lora", "added_ms"),
    [
        (DistinctLora(kind="distinct", pages=(0, 72), ms=(1.0, 3.0), row_ms=0.5), 1.0 + 1.0 + 3 * 0.5),
        (DistinctLora(kind="distinct", pages=(0, 72), ms=(1.0, 3.0), rank_ms=0.01), 1.0 + 1.0 + 0.01 * 80),
        (
            DistinctLora(kind="distinct", pages=(0, 72), ms=(1.0, 3.0), highest_rank_ms=0.1),
            1.0 + 1.0 + 0.1 * 64 * 3 / 4,
        ),
        (DistinctLora(kind="distinct", pages=(0, 72), ms=(1.0, 3.0), large_batch_ms=7.0), 1.0 + 1.0),
        (PaddedLora(kind="padded", rank_ms=0.01), 0.01 * 3 * 64),
        (UnpaddedLora(kind="unpadded", rank_ms=0.01), 0.01 * 80),
    ],
)
def test_adapters_add_to_a_step(profile: PerformanceProfile, lora: LoraTimes, added_ms: float) -> None:
    with_lora = profile.model_copy(update={"lora": lora})
    assert _ms(with_lora, decodes=3, context=30, lora=_MIXED) == pytest.approx(
        _ms(profile, decodes=3, context=30) + added_ms
    )
    assert _ms(with_lora, decodes=3, context=30) == pytest.approx(_ms(profile, decodes=3, context=30)), (
        "no row has LoRA"
    )


def test_a_mixed_step_takes_the_rows_of_both_and_the_decodes_context(profile: PerformanceProfile) -> None:
    context_ms = _ms(profile, decodes=11, context=11 * 110) - _ms(profile, decodes=11, context=0)
    assert _ms(profile, prefill=39, decodes=11, context=11 * 110) == pytest.approx(60.0 + context_ms)


def test_a_mixed_step_is_never_shorter_than_its_decodes(profile: PerformanceProfile) -> None:
    assert _ms(profile, prefill=1, decodes=1, context=0) == pytest.approx(12.0)
    slow = profile.model_copy(update={"decode": profile.decode.model_copy(update={"ms": ((50.0, 51.0), (60.0, 70.0))})})
    assert _ms(slow, prefill=1, decodes=1, context=10) == pytest.approx(50.0)


def test_nothing_takes_no_time(profile: PerformanceProfile) -> None:
    assert _ms(profile) == 0.0


def test_every_step_has_its_overhead(profile: PerformanceProfile) -> None:
    slow = profile.model_copy(update={"step_overhead_ms": 2.0})
    assert _ms(slow, prefill=1) == pytest.approx(13.0)


def test_one_measured_point_is_a_constant(profile: PerformanceProfile) -> None:
    decode = profile.decode.model_copy(update={"batch": (4,), "context": (64,), "ms": ((5.0,),)})
    flat = profile.model_copy(update={"decode": decode})
    assert _ms(flat, decodes=9, context=900) == pytest.approx(5.0)
