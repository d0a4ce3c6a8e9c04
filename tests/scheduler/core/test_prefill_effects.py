"""Coming prefills of a GPU: which run together, when they end, and how long decodes pause for them."""

import pytest

from placed_requests import PlacedRequests
from punica_scheduler.core.decode_batch import decode_batch
from punica_scheduler.core.prefill_effects import PrefillPause, coming_prefills, pause_within
from punica_serve.base_model.prefill_budget import prefill_budget_of
from punica_serve.performance.profile import load_profile
from punica_serve.performance.step_columns import StepTimeColumns
from punica_serve.performance.step_time import StepTimeModel
from punica_serve.prefill_chunks import PrefillBudget
from punica_serve.shapes import shape_of

#: A step of decodes of the base model takes 33.5 ms, and so does one of prefills of up to 186 tokens.
STEP_S = 0.0335


def coming(placed: PlacedRequests, profile: str = "a10-7b-unpadded") -> list[PrefillPause]:
    costs = StepTimeColumns(StepTimeModel(load_profile(profile)))
    gpu = placed.gpus["A"]
    return coming_prefills(gpu, (), decode_batch(gpu), costs, placed.index.now_ns / 1e9)


def test_an_idle_gpu_prefills_at_once() -> None:
    placed = PlacedRequests("A")
    record = placed.request()
    placed.run("A", record)
    assert coming(placed) == [PrefillPause((record,), STEP_S, STEP_S, 0)]


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


LLAMA = prefill_budget_of(shape_of("llama-2-7b"), 512)


def long_and_short(*prompts: int) -> list[PrefillPause]:
    placed = PlacedRequests("A", kv_pages=20_000, prefill_budget=LLAMA)
    for prompt in prompts:
        placed.run("A", placed.request(prompt=prompt))
    return coming(placed, "h200-7b")


def test_a_short_prompt_comes_before_a_long_one_which_takes_its_chunks_time() -> None:
    """Alone 32,000 tokens take a simulated H200 2.57 s, in 158 steps."""
    (alone,) = (pause for pause in long_and_short(32_000) if pause.records)
    assert alone.ends_in_s == pytest.approx(2.57, rel=0.02)
    short, long = (pause for pause in long_and_short(32_000, 160) if pause.records)
    assert short.ends_in_s < 0.010 and short.num_decodes == 1
    assert long.ends_in_s == pytest.approx(alone.ends_in_s + short.ends_in_s, rel=0.02)
    assert long.num_decodes_before + long.num_decodes == 159


def test_a_pause_holds_up_the_steps_that_it_shares() -> None:
    pauses = [PrefillPause((), 0.1, 0.1, 1, 1), PrefillPause((), 2.1, 1.0, 2, 100), PrefillPause((), 3.0, 0.5, 102)]
    within = [pause_within(pauses, num_decodes) for num_decodes in (1, 2, 12, 102, 103)]
    assert within == pytest.approx([0.0, 0.1, 0.2, 1.1, 1.6])


def test_apart_a_queue_longer_than_the_budget_takes_several_steps() -> None:
    placed = PlacedRequests("A", prefill_budget=PrefillBudget(512))
    first, second = records = [placed.request(prompt=prompt) for prompt in (900, 100)]
    placed.run("A", placed.request())
    for record in records:
        placed.run("A", record)
    under_way, chunk, rest = coming(placed)
    assert (chunk.records, rest.records) == ((), (first, second))
    assert under_way.num_decodes_before == 0 and chunk.num_decodes_before == rest.num_decodes_before


def test_beside_decodes_each_has_a_step_that_lasts_longer_for_it() -> None:
    placed = PlacedRequests("A")
    for _ in range(3):
        placed.run("A", placed.request(prompt=512))
    first, second, third = coming(placed, "h200-7b")
    assert 0 < first.pause_s < second.pause_s < third.pause_s, "those that are done decode beside the next"
    assert third.ends_in_s == pytest.approx(3 * first.ends_in_s, rel=0.02)
