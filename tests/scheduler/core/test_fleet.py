"""Drains of GPUs and of runners."""

from punica_scheduler.core import events
from punica_scheduler.core.actions import CallAnswered
from scheduler_in_words import Cluster, NewCluster


def test_requests_of_a_drained_gpu_move_at_once_the_oldest_first(cluster: Cluster) -> None:
    cluster.arrives("r2", at=20)
    cluster.arrives("r1", at=10)
    cluster.steps("B", "r1 r2")
    assert cluster.is_drained("B") == [
        "f: answer 7",
        "B: stop r1",
        "A: start r1 after 1",
        "B: stop r2",
        "A: start r2 after 1",
    ]
    assert cluster.counter("migrations") == 2
    assert cluster.counter("evictions") == 0


def test_a_drained_gpu_takes_nothing_until_that_is_taken_back(filled: NewCluster) -> None:
    cluster = filled("A")
    assert cluster.is_drained("A") == ["f: answer 7"]
    assert cluster.arrives("r1") == []
    assert cluster.scheduler.snapshot(0).gpus[0].is_draining
    assert cluster.is_drained("A", drain=False) == ["f: answer 7", "A: start r1"]
    assert not cluster.scheduler.snapshot(0).gpus[0].is_draining


def test_what_fits_nowhere_else_runs_on_until_it_does(filled: NewCluster) -> None:
    cluster = filled("A", "B", batch=1)
    cluster.arrives("r1")
    cluster.arrives("r2")
    cluster.steps("B", "r1")
    cluster.steps("A", "r2")
    assert cluster.is_drained("B") == ["f: answer 7"]
    assert cluster.steps("B", "r1") == ["r1: 1 token at 1"]
    assert cluster.steps("A", "r2", finished="r2") == ["r2: 1 token at 1 stop"]
    assert cluster.time_passes(0.2) == ["B: stop r1", "A: start r1 after 2"]


def test_nobody_moves_past_an_older_one_that_waits(filled: NewCluster) -> None:
    cluster = filled("A", "B", pages=6)
    cluster.arrives("first", prompt=12)
    cluster.arrives("other", prompt=12)
    cluster.arrives("young", prompt=1, at=10**6)
    cluster.arrives("old", prompt=16, max_tokens=4, at=10**5)
    assert cluster.working_sets() == {"A": 1, "B": 2}
    assert cluster.is_drained("B") == ["f: answer 7"]


def test_a_gpu_that_nobody_knows_is_answered_with_those_there_are(cluster: Cluster) -> None:
    assert cluster.is_drained("C") == ["f: answer 7 gpu_not_found"]
    (answer,) = cluster.actions
    assert isinstance(answer, CallAnswered) and answer.error is not None
    assert "there are A, B" in answer.error.message and answer.error.param == "gpu"


def test_a_worker_that_starts_again_is_still_drained(filled: NewCluster) -> None:
    cluster = filled("A")
    cluster.is_drained("A")
    cluster.gpu_is_lost("A")
    cluster.gpu_joins("A")
    assert cluster.arrives("r1") == []
    cluster.gpu_is_lost("A")
    assert cluster.is_drained("A", drain=False) == ["f: answer 7"]
    assert cluster.gpu_joins("A") == ["A: start r1"]


def test_a_gpu_that_replaces_a_drained_one_is_drained_by_their_name(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.gpu_joins("old", name="host/0")
    cluster.is_drained("host/0")
    cluster.gpu_is_lost("old")
    cluster.gpu_joins("new", name="host/0")
    assert not cluster.scheduler.snapshot(0).gpus[0].is_draining
    assert cluster.is_drained("host/0") == ["f: answer 7"]
    assert cluster.scheduler.snapshot(0).gpus[0].is_draining
    cluster.is_drained("host/0", drain=False)
    assert not cluster.scheduler.snapshot(0).gpus[0].is_draining
    cluster.gpu_is_lost("new")
    assert cluster.is_drained("host/0", drain=False) == ["f: answer 7"], "the old one, which is gone"
    assert cluster.is_drained("host/0", drain=False) == ["f: answer 7 gpu_not_found"]


def test_a_name_belongs_to_the_gpu_that_joined_last(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.gpu_joins("old", name="host/0")
    cluster.gpu_joins("new", name="host/0")
    cluster.gpu_is_lost("old")
    assert cluster.is_drained("host/0") == ["f: answer 7"]
    assert cluster.scheduler.snapshot(0).gpus[0].is_draining
    cluster.gpu_is_lost("new")


def test_a_runner_is_told_once_when_nothing_is_left_there(filled: NewCluster) -> None:
    cluster = filled("A", "B", batch=1, runner="host")
    cluster.gpu_joins("C", batch=1, runner="other host")
    for name in ("r1", "r2", "r3"):
        cluster.arrives(name)
    assert cluster.working_sets() == {"A": 1, "B": 1, "C": 1}
    assert cluster.tell(events.RunnerDrainRequested("host")) == []
    assert cluster.steps("C", "r1", finished="r1") == ["r1: 1 token at 0 stop"]
    assert cluster.time_passes(0.2) == ["B: stop r2", "C: start r2"]
    assert cluster.steps("A", "r3", finished="r3") == ["r3: 1 token at 0 stop", "host: drained"]
    assert cluster.time_passes(0.2) == []
    assert cluster.tell(events.RunnerLost("host")) == []
    assert cluster.counter("gpus_lost") == 0


def test_a_runner_with_no_gpu_has_nothing_left(cluster: Cluster) -> None:
    assert cluster.tell(events.RunnerDrainRequested("empty host")) == ["empty host: drained"]


def test_what_joins_on_a_draining_runner_takes_nothing_and_stays_drained(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.tell(events.RunnerJoined("host"))
    cluster.tell(events.RunnerDrainRequested("host"))
    cluster.gpu_joins("A", runner="host")
    assert cluster.arrives("r1") == []
    assert cluster.is_drained("A", drain=False) == ["f: answer 7 invalid_request"]


def test_a_runner_that_comes_back_is_used_again(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.tell(events.RunnerDrainRequested("host"))
    cluster.tell(events.RunnerJoined("host"))
    cluster.gpu_joins("A", runner="host")
    assert cluster.arrives("r1") == ["A: start r1"]


def test_a_drained_runner_that_leaves_makes_nobody_a_suspect(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    for _ in range(5):
        cluster.gpu_joins("A", runner="host")
        if "r1" not in cluster.assignments:
            cluster.arrives("r1")
        cluster.steps("A", "r1")
        cluster.tell(events.RunnerDrainRequested("host"))
        cluster.tell(events.RunnerLost("host"))
    cluster.gpu_joins("A")
    assert cluster.arrives("r2") == ["A: start r2"]
