"""Packing under promises: where they hold, and which GPU is taken where they don't."""

import pytest

from placed_requests import PlacedRequests
from punica_scheduler.core.consolidate_slo import ConsolidateSloPlacement
from punica_serve.performance.profile import load_profile
from punica_serve.performance.step_columns import StepTimeColumns
from punica_serve.performance.step_time import StepTimeModel
from punica_serve.protocol import Slo


def consolidate_slo(profile: str = "a10-7b-unpadded", margin: float = 0.0) -> ConsolidateSloPlacement:
    return ConsolidateSloPlacement(StepTimeColumns(StepTimeModel(load_profile(profile))), margin)


def started(placed: PlacedRequests, uuid: str, num: int) -> None:
    """So many requests of the base model, which have their first tokens."""
    for _ in range(num):
        placed.begin(uuid, placed.run(uuid, placed.request()))


def test_the_largest_working_set_that_keeps_all_promises_is_taken() -> None:
    placed = PlacedRequests("ABC")
    started(placed, "A", 2)
    started(placed, "B", 5)
    assert placed.order(consolidate_slo(), placed.request(slo=Slo(time_per_token_s=1.0))) == "BAC"
    assert placed.order(consolidate_slo(), placed.request(slo=Slo(time_per_token_s=0.001))) == "CAB", "none holds"


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


def test_the_margin_is_kept_free() -> None:
    placed = PlacedRequests("AB")
    started(placed, "B", 5)
    record = placed.request(slo=Slo(time_per_token_s=0.0352))
    assert placed.order(consolidate_slo(margin=0.0), record) == "BA"
    assert placed.order(consolidate_slo(margin=0.15), record) == "AB"
