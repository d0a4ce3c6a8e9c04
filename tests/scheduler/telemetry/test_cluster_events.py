"""The cluster events that charts mark."""

from typing import Any

import pytest

from punica_scheduler.core import events
from punica_scheduler.telemetry.cluster_events import MAX_GPUS, MAX_MARKS, ClusterEvents
from scheduler_in_words import Cluster, NewCluster

S = 1_000_000_000


@pytest.fixture
def cluster(new_cluster: NewCluster) -> Any:
    return new_cluster()


def kinds(cluster: Cluster) -> list[str]:
    return [mark.kind for mark in cluster.observer.snapshot(cluster.now_ns).marks]


def test_gpus_that_come_and_go(cluster: Cluster) -> None:
    cluster.gpu_joins("gpu")
    cluster.is_drained("gpu")
    cluster.is_drained("gpu", drain=False)
    cluster.gpu_is_lost("gpu")
    assert kinds(cluster) == ["scheduler_started", "gpu_joined", "gpu_drained", "gpu_taken_back", "gpu_lost"]


def test_a_gpu_that_is_released_has_left_and_one_that_still_runs_a_request_is_lost(cluster: Cluster) -> None:
    cluster.gpu_joins("A", runner="host")
    cluster.arrives("r1")
    cluster.gpu_joins("B", runner="host", batch=1)
    cluster.tell(events.RunnerDrainRequested("host"))
    cluster.tell(events.RunnerLost("host"))
    assert sorted(kinds(cluster)[-2:]) == ["gpu_left", "gpu_lost"]
    assert cluster.counter("gpus_lost") == 1


def test_an_idle_gpu_whose_runner_does_not_say_that_it_stops_is_lost(cluster: Cluster) -> None:
    cluster.gpu_joins("A", runner="host")
    cluster.tell(events.RunnerLost("host"))
    assert kinds(cluster)[-1] == "gpu_lost" and cluster.counter("gpus_lost") == 1


def test_an_eviction_and_where_the_request_went(cluster: Cluster) -> None:
    cluster.gpu_joins("gpu-1", pages=4)
    cluster.arrives("a", prompt=6)
    cluster.arrives("b", prompt=6)
    cluster.gpu_joins("gpu-0", pages=4)
    while not cluster.counter("evictions"):
        cluster.steps("gpu-1", "a b")
    marks = cluster.observer.snapshot(cluster.now_ns).marks
    assert [(mark.kind, mark.gpu_uuids) for mark in marks[-2:]] == [("evicted", ("gpu-1",)), ("migrated", ("gpu-0",))]


def test_an_event_grows_after_it_was_sent_and_names_so_many_gpus_at_most() -> None:
    events = ClusterEvents()
    events.add("gpu_joined", "B", 5 * S)
    assert events.snapshot()[0].gpu_uuids == ("B",)
    events.add("gpu_joined", "A", 5 * S)
    assert events.snapshot()[0].gpu_uuids == ("A", "B")
    for number in range(2 * MAX_GPUS):
        events.add("gpu_joined", f"GPU-{number}", 5 * S)
    (mark,) = events.snapshot()
    assert (len(mark.gpu_uuids), mark.count) == (MAX_GPUS, 2 * MAX_GPUS + 2)


def test_repeats_within_a_second_are_one_event() -> None:
    marks = ClusterEvents()
    marks.add("evicted", "gpu", 5 * S)
    marks.add("evicted", "gpu", 6 * S - 1)
    (mark,) = marks.snapshot()
    assert (mark.number, mark.at_ns, mark.gpu_uuids, mark.count) == (1, 5 * S, ("gpu",), 2)
    marks.add("evicted", "another", 6 * S - 1)
    assert [(mark.gpu_uuids, mark.count) for mark in marks.snapshot()] == [(("another", "gpu"), 3)]
    marks.add("evicted", "gpu", 6 * S)
    assert [mark.number for mark in marks.snapshot()] == [1, 2]


def test_the_oldest_are_forgotten_and_numbers_go_on() -> None:
    marks = ClusterEvents()
    for second in range(MAX_MARKS + 3):
        marks.add("migrated", "gpu", second * S)
    assert [mark.number for mark in marks.snapshot()] == list(range(4, MAX_MARKS + 4))
