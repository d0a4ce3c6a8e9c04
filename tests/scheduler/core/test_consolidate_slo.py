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
