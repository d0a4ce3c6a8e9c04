"""Punica's packing under promises."""

from typing import Any

import pytest

from placed_requests import PlacedRequests
from punica_scheduler.core.consolidate_slo import ConsolidateSloPlacement
from punica_serve.base_model.prefill_budget import prefill_budget_of
from punica_serve.performance.profile import load_profile
from punica_serve.performance.step_columns import StepTimeColumns
from punica_serve.performance.step_time import StepTimeModel
from punica_serve.protocol import Slo
from punica_serve.shapes import shape_of

#: A decode step takes 3.74 ms alone and 4.57 ms with 32 rows, both of 128 tokens.
PROFILE = "h200-7b"


def placement(*, margin: float = 0.0) -> ConsolidateSloPlacement:
    return ConsolidateSloPlacement(StepTimeColumns(StepTimeModel(load_profile(PROFILE))), margin)


def two_gpus(num_a: int, num_b: int, slo: Slo | None = None) -> PlacedRequests:
    placed = PlacedRequests("AB")
    for uuid, num in (("A", num_a), ("B", num_b)):
        for _ in range(num):
            placed.begin(uuid, placed.run(uuid, placed.request(slo=slo)))
    return placed


def test_without_promises_it_packs() -> None:
    placed = two_gpus(3, 2)
    assert placed.order(placement(), placed.request()) == "AB"


def test_a_promise_that_holds_packs_and_one_that_would_break_spreads() -> None:
    placed = two_gpus(24, 2)
    assert placed.order(placement(), placed.request(slo=Slo(time_per_token_s=0.010))) == "AB"
    assert placed.order(placement(), placed.request(slo=Slo(time_per_token_s=0.0040))) == "BA"


def test_the_promises_of_those_who_run_count_too() -> None:
    placed = two_gpus(24, 2, Slo(time_per_token_s=0.0040))
    assert placed.order(placement(), placed.request()) == "BA"


def test_where_no_promise_holds_the_load_is_spread() -> None:
    placed = two_gpus(3, 2)
    assert placed.order(placement(), placed.request(slo=Slo(time_per_token_s=0.001))) == "BA"


def test_the_margin_keeps_a_distance() -> None:
    placed = two_gpus(24, 2)
    record = placed.request(slo=Slo(time_per_token_s=0.0052))
    assert placed.order(placement(), record) == "AB"
    assert placed.order(placement(margin=0.5), record) == "BA"


def test_prefills_that_come_first_count_for_the_first_token() -> None:
    placed = two_gpus(3, 2)
    for _ in range(10):
        placed.run("A", placed.request())
    assert placed.order(placement(), placed.request(slo=Slo(first_token_s=1.0))) == "AB"
    assert placed.order(placement(), placed.request(slo=Slo(first_token_s=0.020))) == "BA"


@pytest.mark.parametrize(("promised_s", "keeps"), [(0.010, True), (0.0040, False)])
def test_promises_are_tested_for_requests_that_would_move(promised_s: float, keeps: bool) -> None:
    placed = two_gpus(24, 2)
    newcomers = [placed.request(), placed.request(slo=Slo(time_per_token_s=promised_s))]
    assert placement().keeps_promises(placed.gpus["A"], newcomers, placed.index) == keeps
    assert placement().keeps_promises(placed.gpus["A"], (), placed.index), "nobody there was promised anything"


def consolidate_slo(profile: str = "a10-7b-unpadded", margin: float = 0.0) -> ConsolidateSloPlacement:
    return ConsolidateSloPlacement(StepTimeColumns(StepTimeModel(load_profile(profile))), margin)


def started(placed: PlacedRequests, uuid: str, num: int, slo: Slo | None = None) -> None:
    """So many requests of the base model, which have their first tokens."""
    for _ in range(num):
        placed.begin(uuid, placed.run(uuid, placed.request(slo=slo)))


@pytest.mark.parametrize(("time_per_token_s", "order"), [(0.0339, "BA"), (0.0338, "AB")])
def test_a_pause_for_a_prefill_is_taken_from_the_slack_of_those_who_decode(time_per_token_s: float, order: str) -> None:
    """B's 99 steps of 33.5 ms and a pause of 33.5 ms make 33.84 ms a token."""
    placed = PlacedRequests("AB")
    started(placed, "B", 5, Slo(time_per_token_s=time_per_token_s))
    assert placed.order(consolidate_slo(), placed.request()) == order


def test_a_place_in_a_queue_costs_those_who_decode_nothing_more() -> None:
    placed = PlacedRequests("AB")
    started(placed, "B", 5, Slo(time_per_token_s=0.0339))
    placed.run("B", placed.request())
    assert placed.order(consolidate_slo(), placed.request()) == "BA", "both are prefilled in the next step"
    placed.gpus["B"].num_steps = 1
    assert placed.order(consolidate_slo(), placed.request()) == "AB", "the queue's step is under way, so one more comes"


@pytest.mark.parametrize(("rank", "order"), [(8, "BA"), (128, "AB")])
def test_a_rank_counts_for_every_token_of_those_who_decode(rank: int, order: str) -> None:
    """The pause takes 33.5 of 50 ms of slack; 99 steps take 2 ms longer with rank 8, and 30 with rank 128."""
    placed = PlacedRequests("AB")
    started(placed, "B", 1, Slo(time_per_token_s=0.0340))
    assert placed.order(consolidate_slo(), placed.request(rank=rank)) == order


def test_slack_stays_the_same_while_steps_take_as_long_as_predicted_and_shrinks_when_they_take_longer() -> None:
    placed = PlacedRequests("AB")
    started(placed, "B", 5, Slo(time_per_token_s=0.0339))
    for _ in range(10):
        placed.step("B", 0.0335)
    assert placed.order(consolidate_slo(), placed.request()) == "BA"
    placed.step("B", 0.0500)
    assert placed.order(consolidate_slo(), placed.request()) == "AB"


def test_a_newcomer_with_a_short_answer_has_no_slack_for_a_prefill_after_its_own() -> None:
    """The one that waits prefills next, and the newcomer a step later, since its adapter is copied first."""
    placed = PlacedRequests("AB")
    started(placed, "B", 1)
    placed.run("B", placed.request(max_tokens=3, slo=Slo(time_per_token_s=0.045)))
    assert placed.order(consolidate_slo(), placed.request()) == "BA", "prefilled together"
    assert placed.order(consolidate_slo(), placed.request(rank=8)) == "AB"


@pytest.mark.parametrize(("first_token_s", "order"), [(0.068, "BA"), (0.066, "AB")])
def test_a_queue_is_prefilled_in_one_step_after_the_one_under_way(first_token_s: float, order: str) -> None:
    """B's five prompts of 3 tokens and a decode under way take 67 ms, no longer than one prompt would."""
    placed = PlacedRequests("AB")
    for _ in range(5):
        placed.run("B", placed.request())
    assert placed.order(consolidate_slo(), placed.request(slo=Slo(first_token_s=first_token_s))) == order


def test_beside_decodes_a_queue_is_prefilled_one_by_one() -> None:
    placed = PlacedRequests("AB")
    for _ in range(5):
        placed.run("B", placed.request())
    costs = consolidate_slo("a100-40g-7b")
    assert placed.order(costs, placed.request(slo=Slo(first_token_s=0.3))) == "BA"
    assert placed.order(costs, placed.request(slo=Slo(first_token_s=0.1))) == "AB", "six mixed steps of 23 ms or more"


def test_a_request_whose_first_token_is_overdue_asks_no_gpu() -> None:
    """Where requests wait for long, each would be asked for in vain on as many GPUs as may be asked."""
    num_asked = 0

    class Model(StepTimeModel):
        def step_s(self, *batch: Any) -> float:
            nonlocal num_asked
            num_asked += 1
            return super().step_s(*batch)

    counting = ConsolidateSloPlacement(StepTimeColumns(Model(load_profile(PROFILE))))
    placed = two_gpus(3, 2)
    placed.step("A", 0.020)
    assert placed.order(counting, placed.request(slo=Slo(first_token_s=1.0))) == "AB"
    assert num_asked > 3, "the figures of both, and a forecast"
    num_asked = 0
    assert placed.order(counting, placed.request(slo=Slo(first_token_s=0.019))) == "BA"
    assert num_asked == 0


#: As a Llama-2-7B chunks prompts. 32,000 tokens take 158 steps of 16.3 ms: 2.57 s.
LONG, LLAMA = 32_000, prefill_budget_of(shape_of("llama-2-7b"), 512)


def beside_long(uuids: str = "AB", slo: Slo | None = None) -> PlacedRequests:
    """B has three requests that decode, and five more tokens each."""
    placed = PlacedRequests(uuids, kv_pages=20_000, prefill_budget=LLAMA)
    for _ in range(3):
        placed.begin("B", placed.run("B", placed.request(max_tokens=6, slo=slo)))
    return placed


@pytest.mark.parametrize(("time_per_token_s", "order"), [(0.018, "BA"), (0.012, "AB")])
def test_a_long_prompt_breaks_only_promises_that_its_chunks_break(time_per_token_s: float, order: str) -> None:
    """A request that decodes gets its last five tokens in steps of 17 ms, however long the prompt is."""
    placed = beside_long(slo=Slo(time_per_token_s=time_per_token_s))
    assert placed.order(placement(), placed.request(prompt=LONG)) == order


@pytest.mark.parametrize(("first_token_s", "order"), [(0.025, "BA"), (0.010, "AB")])
def test_a_short_prompt_has_its_turn_before_a_long_one_ends(first_token_s: float, order: str) -> None:
    placed = beside_long()
    placed.run("B", placed.request(prompt=LONG))
    assert placed.order(placement(), placed.request(slo=Slo(first_token_s=first_token_s))) == order


@pytest.mark.parametrize(("first_token_s", "order"), [(2.8, "BA"), (2.5, "AB")])
def test_a_long_prompt_has_its_first_token_after_all_its_chunks(first_token_s: float, order: str) -> None:
    placed = beside_long()
    assert placed.order(placement(), placed.request(prompt=LONG, slo=Slo(first_token_s=first_token_s))) == order


def test_what_a_long_prompt_would_break_does_not_close_the_gpu_to_short_ones() -> None:
    placed = beside_long(slo=Slo(time_per_token_s=0.012))
    assert placed.order(placement(), placed.request(prompt=LONG)) == "AB"
    assert placed.order(placement(), placed.request()) == "BA"
