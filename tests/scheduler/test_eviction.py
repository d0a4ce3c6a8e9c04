import pytest

from punica_scheduler.core.actions import Deliver
from scheduler_in_words import NewCluster


def test_the_newest_by_arrival_is_evicted_not_the_newest_placed(filled: NewCluster) -> None:
    cluster = filled("A", pages=5)
    cluster.arrives("young", prompt=6, at=20)  # 2 pages
    cluster.arrives("old", prompt=6, at=10)  # 2 pages
    # After one token each, two more steps need 9 tokens of both: 3 pages each, and there are 5.
    assert cluster.steps("A", "young old") == ["young: 1 token at 0", "old: 1 token at 0", "A: stop young"]
    assert cluster.counter("evictions") == 1


def test_an_evicted_request_goes_on_elsewhere_with_its_tokens(filled: NewCluster) -> None:
    cluster = filled("A", "B", pages=5)
    cluster.arrives("r1", prompt=6)
    cluster.arrives("r2", prompt=6)
    assert cluster.steps("B", "r1 r2")[2:] == ["B: stop r2", "A: start r2 after 1"]
    stale = (2, 1)
    assert cluster.reports("B", [stale], applied=2) == []
    assert cluster.steps("A", "r2") == ["r2: 1 token at 1"]
    assert cluster.delivered["r2"] == [100, 101]
    assert cluster.counter("migrations") == 1


def test_an_evicted_request_does_not_return_in_the_same_decision(filled: NewCluster) -> None:
    cluster = filled("A", pages=6)
    cluster.arrives("r1", prompt=7)
    cluster.arrives("r2", prompt=3)
    # The worker lacks a page that the scheduler counts: r2 would fit again at once.
    assert cluster.steps("A", "r1", starved="r2") == ["r1: 1 token at 0", "A: stop r2"]
    assert cluster.time_passes(0) == ["A: start r2"]
    assert cluster.counter("migrations") == 0


def test_a_worker_without_pages_waits_for_stops_on_their_way(filled: NewCluster) -> None:
    cluster = filled("A", pages=6)
    for name in ("r1", "r2", "r3"):
        cluster.arrives(name, prompt=3)
    cluster.is_cancelled("r1")
    assert cluster.steps("A", "r2", applied=3, starved="r3") == ["r2: 1 token at 0"]


def test_an_evicted_request_waits_at_its_place_by_arrival(filled: NewCluster) -> None:
    cluster = filled("A", pages=5)
    cluster.arrives("r1", prompt=6)
    cluster.arrives("r2", prompt=6)
    cluster.arrives("r3", prompt=6)
    cluster.steps("A", "r1 r2")
    assert cluster.steps("A", "r1", finished="r1")[1:] == ["A: start r2 after 1", "A: start r3"]


def test_eviction_goes_on_until_the_rest_fits(filled: NewCluster) -> None:
    cluster = filled("A", pages=8)
    for name in ("r1", "r2", "r3", "r4"):
        cluster.arrives(name, prompt=6)
    cluster.steps("A", "r1 r2 r3 r4")
    assert cluster.working_sets() == {"A": 2}
    assert cluster.counter("evictions") == 2


def test_growth_stops_at_max_tokens(filled: NewCluster) -> None:
    cluster = filled("A", pages=4)
    cluster.arrives("r1", prompt=7, max_tokens=1)
    cluster.arrives("r2", prompt=7, max_tokens=1)
    assert cluster.steps("A") == []  # 2 pages each hold all that they can ever have


def test_a_request_that_outgrows_its_gpu_moves_to_a_larger_one(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.gpu_joins("small", pages=2)
    cluster.gpu_joins("large", pages=4)
    cluster.arrives("r1", prompt=5, max_tokens=8)
    assert cluster.steps("small", "r1") == ["r1: 1 token at 0"]
    assert cluster.steps("small", "r1")[1:] == ["small: stop r1", "large: start r1 after 2"]


def test_a_request_that_has_outgrown_a_gpu_does_not_come_back_to_it(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.gpu_joins("small", pages=2)
    cluster.gpu_joins("large", pages=4, batch=1)
    cluster.arrives("r1", prompt=12, max_tokens=4)
    cluster.arrives("r2", prompt=5, max_tokens=8)
    cluster.steps("small", "r2")
    assert cluster.steps("small", "r2")[1:] == ["small: stop r2"]
    assert cluster.steps("small") == []
    assert cluster.steps("large", "r1", finished="r1")[1:] == ["large: start r2 after 2"]


def test_a_request_that_has_outgrown_all_that_is_left_waits_for_a_larger_gpu(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.gpu_joins("small", pages=2)
    cluster.gpu_joins("large", pages=4)
    cluster.arrives("r1", prompt=5, max_tokens=8)
    cluster.steps("small", "r1")
    cluster.gpu_is_lost("large")
    assert cluster.steps("small", "r1") == ["r1: 1 token at 1", "small: stop r1"]
    assert cluster.gpu_joins("large", pages=4) == ["large: start r1 after 2"]


def test_without_migration_it_waits_for_no_gpu_that_it_has_outgrown(new_cluster: NewCluster) -> None:
    cluster = new_cluster(migration=False)
    cluster.gpu_joins("small", pages=2)
    cluster.gpu_joins("large", pages=4)
    cluster.arrives("r1", prompt=5, max_tokens=8)
    cluster.steps("small", "r1")
    assert cluster.steps("small", "r1") == ["r1: 1 token at 1", "small: stop r1", "large: start r1 after 2"]


def test_migration_as_in_the_paper(filled: NewCluster) -> None:
    """Punica, figure 5: a long request outgrows the busiest GPU, and the newest there moves to the next busiest."""
    cluster = filled("1", "2", "3", pages=8, batch=4)
    for name in ("r1", "r2", "r3", "r4"):
        cluster.arrives(name, prompt=6, max_tokens=20)  # 2 pages each: GPU 3 is full
    cluster.arrives("r5", prompt=6, max_tokens=20)
    assert cluster.working_sets() == {"1": 0, "2": 1, "3": 4}
    assert cluster.steps("3", "r1 r2 r3 r4")[4:] == [
        "3: stop r4",
        "3: stop r3",
        "2: start r3 after 1",
        "2: start r4 after 1",
    ]
    assert cluster.arrives("r6", prompt=6) == ["1: start r6"]


def test_without_migration_an_evicted_request_waits_for_the_gpu_that_it_ran_on(new_cluster: NewCluster) -> None:
    cluster = new_cluster(migration=False)
    cluster.gpu_joins("A", pages=5)
    cluster.arrives("r1", prompt=6)
    cluster.arrives("r2", prompt=6)
    cluster.gpu_joins("B", pages=5)
    assert cluster.steps("A", "r1 r2")[2:] == ["A: stop r2"]
    assert cluster.arrives("r3", prompt=1) == ["B: start r3"], "the queue does not wait for it"
    assert cluster.steps("A", "r1", finished="r1") == ["r1: 1 token at 1 stop", "A: start r2 after 1"]
    assert cluster.counter("migrations") == 0


def test_without_migration_nobody_takes_the_place_of_one_that_waits_for_its_gpu(new_cluster: NewCluster) -> None:
    cluster = new_cluster(migration=False)
    cluster.gpu_joins("A", pages=5)
    cluster.arrives("r1", prompt=6)
    cluster.arrives("r2", prompt=6)
    cluster.steps("A", "r1 r2")
    assert cluster.arrives("r3", prompt=1) == []
    assert cluster.is_cancelled("r2") == ["A: start r3"]


def test_without_migration_a_lost_gpu_frees_those_that_wait_for_it(new_cluster: NewCluster) -> None:
    cluster = new_cluster(migration=False)
    cluster.gpu_joins("A", pages=5)
    cluster.arrives("r1", prompt=6)
    cluster.arrives("r2", prompt=6)
    cluster.steps("A", "r1 r2")
    cluster.gpu_joins("B", pages=8)
    assert cluster.gpu_is_lost("A") == ["B: start r1 after 1", "B: start r2 after 1"]


def test_a_request_that_has_left_is_not_preempted(filled: NewCluster) -> None:
    cluster = filled("A", pages=6)
    cluster.arrives("r1", prompt=3)
    cluster.arrives("r2", prompt=3)
    cluster.is_cancelled("r2")
    cluster.steps("A", "r1")
    assert cluster.steps("A", "r1", starved="r2") == ["r1: 1 token at 1"], "it lacks nothing"


def test_the_end_tells_all_waits_and_evictions_together(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.arrives("r1", prompt=6)
    cluster.arrives("r2", prompt=6)
    cluster.time_passes(2.0)
    cluster.gpu_joins("A", pages=5)
    assert cluster.working_sets() == {"A": 2}
    cluster.steps("A", "r1 r2")
    cluster.time_passes(3.0)
    cluster.steps("A", "r1", finished="r1")
    cluster.steps("A", "r2", finished="r2")
    (end,) = [end for action in cluster.actions if isinstance(action, Deliver) for end in action.deliveries.endings]
    assert end.queue_s == pytest.approx(5.0, abs=0.5)
    assert end.num_evictions == 1


def test_the_end_tells_the_time_from_the_first_placement_to_the_first_token(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.arrives("r1")
    cluster.time_passes(2.0)
    cluster.gpu_joins("A")
    cluster.time_passes(1.0)
    cluster.gpu_is_lost("A")
    cluster.gpu_joins("B")
    cluster.time_passes(1.0)
    cluster.steps("B", "r1")
    cluster.time_passes(5.0)
    cluster.steps("B", "r1", finished="r1")
    (end,) = [end for action in cluster.actions if isinstance(action, Deliver) for end in action.deliveries.endings]
    assert end.prefill_s == 2.0


def test_the_end_of_a_request_without_tokens_tells_no_such_time(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.gpu_joins("A")
    cluster.arrives("r1")
    cluster.is_cancelled("r1")
    (end,) = [end for action in cluster.actions if isinstance(action, Deliver) for end in action.deliveries.endings]
    assert end.prefill_s is None


def test_one_that_is_given_up_while_it_waits_has_waited(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.arrives("r1")
    cluster.time_passes(2.0)
    cluster.is_cancelled("r1")
    (end,) = [end for action in cluster.actions if isinstance(action, Deliver) for end in action.deliveries.endings]
    assert end.queue_s == pytest.approx(2.0, abs=0.5)
