"""Those that wait beside the queue for a GPU that is large enough."""

from typing import Any

import pytest

from punica_scheduler.core import events
from punica_scheduler.core.advice import ScaleRule
from punica_scheduler.core.consolidation import ConsolidationRule
from punica_serve.protocol import ScaleAdvice
from scheduler_in_words import Cluster, NewCluster


@pytest.fixture
def without_large(new_cluster: NewCluster) -> NewCluster:
    """Called with settings: r1 ran on the only GPU that is large enough, which is lost."""

    def lose(**settings: Any) -> Cluster:
        cluster = new_cluster(**settings)
        cluster.gpu_joins("large", pages=16)
        cluster.gpu_joins("small", pages=4)
        assert cluster.arrives("r1", prompt=20, max_tokens=30) == ["large: start r1"]
        cluster.steps("large", "r1")
        assert cluster.gpu_is_lost("large") == []
        return cluster

    return lose


def test_a_stream_that_no_gpu_is_large_enough_for_any_more_goes_on_when_one_is(without_large: NewCluster) -> None:
    cluster = without_large()
    assert cluster.scheduler.snapshot(0).queue_length == 1
    assert cluster.arrives("r2", prompt=3, max_tokens=4) == ["small: start r2"], "it holds up nobody"
    assert cluster.gpu_joins("other small", pages=4) == []
    assert cluster.gpu_joins("large", pages=16) == ["large: start r1 after 1"]


def test_new_requests_of_that_size_are_refused_meanwhile(without_large: NewCluster) -> None:
    assert without_large().arrives("r2", prompt=20) == ["r2: context_length_exceeded"]


def test_it_waits_no_longer_than_others(without_large: NewCluster) -> None:
    cluster = without_large(queue_timeout_ns=5 * 10**9)
    assert cluster.time_passes(4) == []
    assert cluster.time_passes(1) == ["r1: out_of_capacity"]


def test_it_may_be_cancelled_there(without_large: NewCluster) -> None:
    cluster = without_large()
    assert cluster.is_cancelled("r1") == []
    assert cluster.scheduler.snapshot(0).queue_length == 0


@pytest.mark.parametrize("generated", [0, 3])
def test_after_a_restart_what_comes_back_before_its_gpu_waits_for_it(new_cluster: NewCluster, generated: int) -> None:
    cluster = new_cluster()
    cluster.gpu_joins("small", pages=4)
    assert cluster.arrives("r1", prompt=20, generated=generated, is_new=False) == []
    assert cluster.gpu_joins("large", pages=16) == ["large: start r1" + (f" after {generated}" if generated else "")]


def test_one_whose_gpu_left_after_a_drain_waits_for_another(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.gpu_joins("small", pages=4, runner="other host")
    cluster.gpu_joins("large", pages=16, runner="host")
    cluster.arrives("r1", prompt=20)
    assert cluster.tell(events.RunnerDrainRequested("host")) == []
    assert cluster.tell(events.RunnerLost("host")) == []
    assert cluster.gpu_joins("large", pages=16, runner="host") == ["large: start r1"]


def test_while_it_waits_gpus_are_emptied(new_cluster: NewCluster) -> None:
    rule = ConsolidationRule(interval_ns=10**9, light_load=0.25, prefill_tokens_per_s=1000, idle_s=10)
    cluster = new_cluster(consolidation=rule)
    cluster.gpu_joins("large", pages=128)
    cluster.arrives("r1", prompt=300)
    cluster.steps("large", "r1")
    cluster.gpu_is_lost("large")
    cluster.runs_one_each()
    assert cluster.scheduler.snapshot(0).queue_length == 1
    assert cluster.time_passes(1) == ["A: stop a1", "B: start a1 after 1"]


def test_while_it_waits_idle_gpus_are_released(without_large: NewCluster) -> None:
    cluster = without_large(scale=ScaleRule(idle_ns=10**9))
    cluster.gpu_joins("other small", pages=4, runner="other host")
    cluster.time_passes(2)
    assert cluster.advice == ScaleAdvice(releasable_runners=("other host",))
