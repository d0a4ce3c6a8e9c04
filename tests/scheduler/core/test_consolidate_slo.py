"""Punica's packing under promises."""

import pytest

from placed_requests import PlacedRequests
from punica_scheduler.core.consolidate_slo import ConsolidateSloPlacement
from punica_serve.performance.profile import load_profile
from punica_serve.performance.step_columns import StepTimeColumns
from punica_serve.performance.step_time import StepTimeModel
from punica_serve.protocol import Slo

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
    assert placed.order(placement(), placed.request(slo=Slo(time_per_token_s=0.0043))) == "BA"


def test_the_promises_of_those_who_run_count_too() -> None:
    placed = two_gpus(24, 2, Slo(time_per_token_s=0.0043))
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


@pytest.mark.parametrize(("promised_s", "keeps"), [(0.010, True), (0.0043, False)])
def test_promises_are_tested_for_requests_that_would_move(promised_s: float, keeps: bool) -> None:
    placed = two_gpus(24, 2)
    newcomers = [placed.request(), placed.request(slo=Slo(time_per_token_s=promised_s))]
    assert placement().keeps_promises(placed.gpus["A"], newcomers, placed.index) == keeps
    assert placement().keeps_promises(placed.gpus["A"], (), placed.index), "nobody there was promised anything"


def consolidate_slo(profile: str = "a10-7b-unpadded", margin: float = 0.0) -> ConsolidateSloPlacement:
    return ConsolidateSloPlacement(StepTimeColumns(StepTimeModel(load_profile(profile))), margin)


def started(placed: PlacedRequests, uuid: str, num: int) -> None:
    """So many requests of the base model, which have their first tokens."""
    for _ in range(num):
        placed.begin(uuid, placed.run(uuid, placed.request()))


@pytest.mark.parametrize(("time_per_token_s", "order"), [(0.0352, "BA"), (0.0348, "AB")])
def test_pauses_for_prefills_count_in_the_time_per_token(time_per_token_s: float, order: str) -> None:
    """B's six requests pause 33.5 ms for 6 / 128 prefills a step, so a token takes 35.07 ms; A's takes 33.76."""
    placed = PlacedRequests("AB")
    started(placed, "B", 5)
    assert placed.order(consolidate_slo(), placed.request(slo=Slo(time_per_token_s=time_per_token_s))) == order


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
