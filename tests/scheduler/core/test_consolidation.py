"""A look every second; a step takes 10 ms, and a GPU prefills 1000 tokens a second."""

from dataclasses import replace
from typing import Any

import pytest

from punica_scheduler.core.consolidate_slo import ConsolidateSloPlacement
from punica_scheduler.core.consolidation import ConsolidationRule
from punica_scheduler.core.placement import Placement, PunicaPlacement
from punica_serve.paging.prefix_hash import hints_of
from punica_serve.performance.profile import load_profile
from punica_serve.performance.step_columns import StepTimeColumns
from punica_serve.performance.step_time import StepTimeModel
from punica_serve.protocol import PrefixCaching, Request, SamplingParams, Slo
from scheduler_in_words import PAGE_SIZE, Cluster, NewCluster

RULE = ConsolidationRule(interval_ns=10**9, light_load=0.25, prefill_tokens_per_s=1000, idle_s=10)


@pytest.fixture
def spread(new_cluster: NewCluster) -> NewCluster:
    """Called with a rule: A, lightly loaded, runs a1, and B runs b1 to b4."""

    def spread_out(rule: ConsolidationRule = RULE, placement: Placement | None = None, **a1: Any) -> Cluster:
        cluster = new_cluster(consolidation=rule, placement=placement or PunicaPlacement())
        cluster.gpu_joins("A", pages=64)
        cluster.arrives("a1", **({"max_tokens": 60} | a1))
        cluster.steps("A", "a1")
        cluster.is_drained("A")
        cluster.gpu_joins("B", pages=64)
        for name in ("b1", "b2", "b3", "b4"):
            cluster.arrives(name, max_tokens=60)
        cluster.is_drained("A", drain=False)
        assert cluster.working_sets() == {"A": 1, "B": 4}
        return cluster

    return spread_out


def test_a_lightly_loaded_gpu_is_emptied_onto_a_busier_one(spread: NewCluster) -> None:
    cluster = spread()
    assert cluster.time_passes(1) == ["A: stop a1", "B: start a1 after 1"]
    assert (cluster.counter("consolidations"), cluster.counter("migrations")) == (1, 1)
    assert cluster.counter("evictions") == 0
    assert cluster.steps("B", "a1 b1") == ["a1: 1 token at 1", "b1: 1 token at 0"]


@pytest.mark.parametrize(("promised_s", "moves"), [(0.0220, ["A: stop a1", "B: start a1 after 1"]), (0.0205, [])])
def test_a_gpu_is_not_emptied_where_a_promise_would_break(
    promised_s: float, moves: list[str], spread: NewCluster
) -> None:
    """After a second, 59 tokens and five prefills on B take another 0.25: 59 times 21.2 ms in all."""
    packing = ConsolidateSloPlacement(StepTimeColumns(StepTimeModel(load_profile("h200-7b"))), margin=0.0)
    cluster = spread(placement=packing, slo=Slo(time_per_token_s=promised_s))
    assert cluster.time_passes(1) == moves


def test_without_a_rule_nothing_is_emptied(spread: NewCluster) -> None:
    assert spread(None).time_passes(1) == []


def test_it_is_looked_for_once_in_an_interval(spread: NewCluster) -> None:
    cluster = spread()
    cluster.scheduler._periodic._next_consolidation_ns = cluster.now_ns + 10**9
    assert cluster.time_passes(0.5) == []
    assert cluster.time_passes(0.5) == ["A: stop a1", "B: start a1 after 1"]


def test_requests_that_end_soon_are_not_worth_their_recompute(spread: NewCluster) -> None:
    assert spread(max_tokens=2, prompt=50).time_passes(1) == []  # 51 ms of prefill to save 10 ms


def test_a_recompute_that_takes_longer_than_gpus_stay_idle_is_not_worth_it(spread: NewCluster) -> None:
    assert spread(replace(RULE, idle_s=0.003)).time_passes(1) == []  # 4 tokens take 4 ms
    assert spread(replace(RULE, idle_s=0.005)).time_passes(1) == ["A: stop a1", "B: start a1 after 1"]


def test_a_gpu_whose_steps_nobody_has_seen_is_left_alone(new_cluster: NewCluster) -> None:
    cluster = new_cluster(consolidation=RULE)
    cluster.gpu_joins("A")
    cluster.arrives("a1")
    cluster.gpu_joins("B", batch=1)
    assert cluster.time_passes(1) == []


def test_nothing_moves_while_someone_waits(spread: NewCluster) -> None:
    cluster = spread()
    cluster.arrives("waits", prompt=235, max_tokens=20)
    assert cluster.time_passes(1) == []
    cluster.is_cancelled("waits")
    assert cluster.time_passes(1) == ["A: stop a1", "B: start a1 after 1"]


@pytest.mark.parametrize(("num_places", "moves"), [(5, 0), (6, 2)])
def test_a_gpu_is_emptied_whole_or_not_at_all(new_cluster: NewCluster, num_places: int, moves: int) -> None:
    cluster = new_cluster(consolidation=RULE)
    cluster.gpu_joins("A", pages=64)
    for name in ("a1", "a2"):
        cluster.arrives(name, max_tokens=60)
    cluster.steps("A", "a1 a2")
    cluster.is_drained("A")
    cluster.gpu_joins("B", pages=64, batch=num_places)
    for name in ("b1", "b2", "b3", "b4"):
        cluster.arrives(name)
    cluster.is_drained("A", drain=False)
    cluster.time_passes(1)
    assert cluster.counter("migrations") == moves


def test_nothing_moves_to_where_it_would_soon_be_evicted(new_cluster: NewCluster) -> None:
    cluster = new_cluster(consolidation=RULE)
    cluster.gpu_joins("A", pages=64)
    cluster.arrives("a1", prompt=14, max_tokens=40)
    cluster.steps("A", "a1")
    cluster.is_drained("A")
    cluster.gpu_joins("B", pages=11)
    for name in ("b1", "b2"):
        cluster.arrives(name, prompt=6, max_tokens=38)
    cluster.is_drained("A", drain=False)
    assert cluster.time_passes(1) == []  # it takes 5 of B's 7 free pages, and a page for each of 3 must be left
    cluster.is_cancelled("b1")
    cluster.arrives("b3", prompt=1, max_tokens=40)
    cluster.steps("B")
    assert cluster.time_passes(1)[0] == "A: stop a1"


def test_a_request_is_moved_for_this_once_in_its_life(spread: NewCluster) -> None:
    cluster = spread()
    cluster.time_passes(1)
    assert cluster.steps("B", "a1 b1 b2 b3 b4", starved="b4")[-1].startswith("A: start b4")
    cluster.steps("A", "b4")
    cluster.is_drained("B")
    for _ in range(10):
        cluster.time_passes(1)
    cluster.is_drained("B", drain=False)
    num_before = cluster.counter("consolidations")
    for _ in range(10):
        cluster.time_passes(1)
    assert cluster.counter("consolidations") == num_before


def test_among_equals_requests_move_up_the_uuids_and_stay(new_cluster: NewCluster) -> None:
    cluster = new_cluster(consolidation=RULE)
    cluster.runs_one_each()
    assert cluster.time_passes(1) == ["A: stop a1", "B: start a1 after 1"]
    cluster.steps("B", "a1 b1")
    assert cluster.time_passes(1) == []


@pytest.mark.parametrize("is_known", [False, True])
def test_what_another_gpu_knows_of_a_prompt_need_not_be_computed_again(new_cluster: NewCluster, is_known: bool) -> None:
    """10 tokens would take a second, longer than the 59 that are left; 2 of them take 0.2."""
    sharing = PrefixCaching("base")
    cluster = new_cluster(consolidation=replace(RULE, prefill_tokens_per_s=10))
    cluster.gpu_joins("A", pages=64, prefix_caching=sharing)
    cluster.arrives("a1", prompt=9, max_tokens=60)
    cluster.steps("A", "a1")
    cluster.is_drained("A")
    cluster.gpu_joins("B", pages=64, prefix_caching=sharing)
    for name in ("b1", "b2", "b3", "b4"):
        cluster.arrives(name, max_tokens=60)
    cluster.is_drained("A", drain=False)
    request = Request("r", 0, (7,) * 9, SamplingParams())
    cluster.reports("B", [], hints=hints_of(request, sharing, PAGE_SIZE, request.prompt_ids) if is_known else ())
    assert cluster.time_passes(1) == (["A: stop a1", "B: start a1 after 1"] if is_known else [])
