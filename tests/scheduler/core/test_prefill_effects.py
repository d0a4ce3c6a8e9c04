"""Coming prefills of a GPU: which run together, when they end, and how long decodes pause for them."""

import pytest

from placed_requests import PlacedRequests
from punica_scheduler.core.decode_batch import decode_batch
from punica_scheduler.core.prefill_effects import PrefillStep, coming_prefills
from punica_serve.performance.profile import load_profile
from punica_serve.performance.step_columns import StepTimeColumns
from punica_serve.performance.step_time import StepTimeModel

#: A step of decodes of the base model takes 33.5 ms, and so does one of prefills of up to 186 tokens.
STEP_S = 0.0335


def coming(placed: PlacedRequests, profile: str = "a10-7b-unpadded") -> list[PrefillStep]:
    costs = StepTimeColumns(StepTimeModel(load_profile(profile)))
    gpu = placed.gpus["A"]
    return coming_prefills(gpu, (), decode_batch(gpu), costs, placed.index.now_ns / 1e9)


def test_an_idle_gpu_prefills_at_once() -> None:
    placed = PlacedRequests("A")
    record = placed.request()
    placed.run("A", record)
    assert coming(placed) == [PrefillStep((record,), STEP_S, STEP_S)]


def test_those_that_come_meanwhile_share_the_next_step_and_adapters_are_copied_first() -> None:
    placed = PlacedRequests("A")
    records = [placed.request(), placed.request(), placed.request(), placed.request(rank=8)]
    for record in records:
        placed.run("A", record)
    first, second, third = coming(placed)
    assert (first.records, second.records, third.records) == ((records[0],), tuple(records[1:3]), (records[3],))
    assert [step.pause_s for step in (first, second)] == [STEP_S, STEP_S]
    assert (first.ends_in_s, second.ends_in_s) == pytest.approx((STEP_S, 2 * STEP_S))


def test_the_decodes_that_are_under_way_end_first() -> None:
    placed = PlacedRequests("A")
    placed.begin("A", placed.run("A", placed.request()))
    placed.gpus["A"].num_steps = 1
    placed.run("A", placed.request())
    placed.index.now_ns = 10_000_000
    (step,) = coming(placed)
    assert (step.ends_in_s, step.pause_s) == pytest.approx((2 * STEP_S - 0.010, STEP_S))


def test_a_prefill_that_is_under_way_holds_decodes_up_for_its_rest() -> None:
    placed = PlacedRequests("A")
    placed.run("A", placed.request())
    placed.index.now_ns = 30_000_000
    (step,) = coming(placed)
    assert (step.ends_in_s, step.pause_s) == pytest.approx((0.0035, 0.0035))


def test_beside_decodes_each_has_a_step_that_lasts_longer_for_it() -> None:
    placed = PlacedRequests("A")
    for _ in range(3):
        placed.run("A", placed.request(prompt=512))
    first, second, third = coming(placed, "h200-7b")
    assert first.pause_s == second.pause_s == third.pause_s > 0
    assert third.ends_in_s == pytest.approx(3 * first.ends_in_s)
