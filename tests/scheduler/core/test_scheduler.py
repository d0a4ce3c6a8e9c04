from punica_scheduler.core import events
from punica_scheduler.core.actions import Deliver, Start
from punica_scheduler.core.scheduler import Scheduler
from scheduler_in_words import Cluster, NewCluster


def test_cancelling_a_queued_request_lets_the_next_pass(filled: NewCluster) -> None:
    cluster = filled("A", pages=8)
    cluster.arrives("r1", prompt=20)
    cluster.arrives("long", prompt=20)
    cluster.arrives("short", prompt=1)
    assert cluster.is_cancelled("long") == ["A: start short"]


def test_a_cancelled_request_gets_nothing_more(cluster: Cluster) -> None:
    cluster.arrives("r1")
    assert cluster.is_cancelled("r1") == ["B: stop r1"]
    assert cluster.steps("B", "r1", applied=1) == []
    assert cluster.steps("B", "r1", finished="r1", applied=1) == []
    assert cluster.is_cancelled("r1") == []
    assert cluster.counter("cancelled") == 1


def test_only_its_own_frontend_cancels_a_request(cluster: Cluster) -> None:
    cluster.arrives("r1", frontend="mine")
    assert cluster.is_cancelled("r1", frontend="yours") == []
    assert cluster.working_sets()["B"] == 1


def test_a_lost_frontend_has_its_requests_cancelled(cluster: Cluster) -> None:
    cluster.arrives("r1", frontend="mine")
    cluster.arrives("r2", frontend="yours")
    assert cluster.tell(events.FrontendLost("mine")) == ["B: stop r1"]
    assert cluster.working_sets()["B"] == 1


def test_requests_of_a_lost_gpu_go_on_elsewhere_in_order_of_arrival(cluster: Cluster) -> None:
    cluster.arrives("r2", at=20)
    cluster.arrives("r1", at=10)
    cluster.steps("B", "r1 r2")
    assert cluster.gpu_is_lost("B") == ["A: start r1 after 1", "A: start r2 after 1"]
    assert (cluster.counter("gpus_lost"), cluster.counter("migrations")) == (1, 2)


def test_a_lost_runner_loses_all_its_gpus_in_one_decision(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.tell(events.RunnerJoined("host 1"))
    for uuid, runner in (("A", "host 2"), ("B", "host 1"), ("C", "host 1")):
        cluster.gpu_joins(uuid, runner=runner)
    cluster.arrives("r1")
    assert cluster.tell(events.RunnerLost("host 1")) == ["A: start r1"]
    assert cluster.working_sets() == {"A": 1}


def test_a_gpu_that_joins_again_starts_empty(cluster: Cluster) -> None:
    cluster.arrives("r1")
    old = cluster.assignments["r1"]
    assert cluster.gpu_joins("B") == ["B: start r1"]
    assert isinstance(start := cluster.actions[0], Start) and start.seq == 1
    assert cluster.assignments["r1"] != old


def test_a_request_with_all_its_tokens_ends_when_its_gpu_is_lost(cluster: Cluster) -> None:
    cluster.arrives("r1", max_tokens=1)
    cluster.steps("B", "r1")
    assert cluster.gpu_is_lost("B") == ["r1: length"]


def test_a_request_added_with_tokens_goes_on_from_there(cluster: Cluster) -> None:
    assert cluster.arrives("r1", generated=3) == ["B: start r1 after 3"]
    assert cluster.steps("B", "r1") == ["r1: 1 token at 3"]


def test_a_request_added_again_supersedes_itself(cluster: Cluster) -> None:
    cluster.arrives("r1")
    cluster.steps("B", "r1 r1")
    assert cluster.arrives("r1", generated=1) == ["B: stop r1", "B: start r1 after 1"]
    assert (cluster.counter("arrived"), cluster.counter("cancelled")) == (2, 1)


def test_an_id_of_another_frontend_is_refused_and_harms_nobody(cluster: Cluster) -> None:
    cluster.arrives("r1", frontend="mine")
    assert cluster.arrives("r1", frontend="yours") == ["r1: invalid_request"]
    assert isinstance(refusal := cluster.actions[0], Deliver) and refusal.frontend_id == "yours"
    assert cluster.working_sets()["B"] == 1


def test_the_snapshot_shows_gpus_queue_and_peers(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.tell(events.FrontendJoined("f"))
    cluster.tell(events.RunnerJoined("runner"))
    cluster.gpu_joins("A", pages=4)
    cluster.arrives("r1", prompt=8, max_tokens=4)
    cluster.arrives("r2", prompt=8, max_tokens=4)
    cluster.steps("A", "r1")
    snapshot = cluster.scheduler.snapshot(77)
    assert (snapshot.incarnation, snapshot.now_ns) == (cluster.incarnation, 77)
    assert (snapshot.queue_length, snapshot.num_frontends, snapshot.num_runners) == (1, 1, 1)
    (gpu,) = snapshot.gpus
    assert (gpu.runner_id, gpu.working_set, gpu.free_kv_pages) == ("runner", 1, 1)
    assert (gpu.steps, gpu.tokens) == (1, 1)


def test_the_event_log_replays(filled: NewCluster) -> None:
    cluster = filled("A", "B", pages=5)
    for name in ("r1", "r2", "r3"):
        cluster.arrives(name, prompt=6)
    cluster.steps("B", "r1 r2")
    cluster.is_cancelled("r1")
    again = Scheduler(cluster.incarnation)
    for entry in cluster.scheduler.event_log:
        assert again.handle(entry.event, entry.now_ns) == entry.actions
