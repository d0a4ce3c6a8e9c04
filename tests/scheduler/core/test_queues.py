from scheduler_in_words import NewCluster


def test_a_head_that_does_not_fit_blocks_those_that_would(filled: NewCluster) -> None:
    cluster = filled("A", pages=8)
    cluster.arrives("r1", prompt=20)
    assert cluster.arrives("long", prompt=20) == []
    assert cluster.arrives("short", prompt=1) == []
    assert cluster.steps("A", "r1", finished="r1") == ["r1: 1 token at 0 stop", "A: start long", "A: start short"]


def test_the_queue_goes_by_arrival_at_the_frontend_then_by_id(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    for name, at in (("b", 5), ("a", 5), ("late", 9), ("early", 1)):
        cluster.arrives(name, at=at)
    assert cluster.gpu_joins("A") == ["A: start early", "A: start a", "A: start b", "A: start late"]


def test_no_gpu_means_queue(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    assert cluster.arrives("r1", prompt=10_000) == []
    assert cluster.scheduler.snapshot(0).queue_length == 1


def test_a_full_queue_refuses_newcomers_but_not_what_comes_back(new_cluster: NewCluster) -> None:
    cluster = new_cluster(max_queue=1)
    cluster.arrives("r1")
    assert cluster.arrives("r2") == ["r2: out_of_capacity"]
    assert cluster.error.message == "the queue for a GPU is full, with 1 request; try again later"
    assert cluster.arrives("r3", generated=2) == []
    assert cluster.arrives("still without a token", is_new=False) == []
    assert cluster.counter("failed") == 1


def test_waiting_has_a_deadline(new_cluster: NewCluster) -> None:
    cluster = new_cluster(queue_timeout_ns=5 * 10**9)
    cluster.arrives("r1")
    cluster.time_passes(3)
    cluster.arrives("r2")
    assert cluster.time_passes(2) == ["r1: out_of_capacity"]
    assert cluster.time_passes(3) == ["r2: out_of_capacity"]


def test_nothing_is_placed_before_the_first_tick_after_settling(new_cluster: NewCluster) -> None:
    cluster = new_cluster(settle_ns=10**9)
    cluster.gpu_joins("A")
    assert cluster.arrives("r2") == []
    assert cluster.time_passes(0.5) == []
    assert cluster.arrives("r1", at=1) == []
    assert cluster.time_passes(0.5) == ["A: start r1", "A: start r2"]
