"""Page accounting where requests share pages: each counts once."""

from punica_serve.protocol import PrefixCaching
from scheduler_in_words import NewCluster

SHARING = PrefixCaching("base")


def test_shared_pages_are_needed_once(new_cluster: NewCluster) -> None:
    """Three requests of 5 pages in a pool of 9 fit, since two hold 3 of the first one's pages: 5 + 2 + 2."""
    cluster = new_cluster()
    cluster.gpu_joins("A", pages=9, prefix_caching=SHARING)
    cluster.arrives("r1", prompt=17)
    cluster.steps("A", "r1")
    assert cluster.arrives("r2", prompt=17) == [], "the scheduler can't know what r2 will find"
    assert cluster.steps("A", "r1", finished="r1") == ["r1: 1 token at 1 stop", "A: start r2"]
    cluster.is_cancelled("r2")


def test_what_is_shared_makes_room(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.gpu_joins("A", pages=12, prefix_caching=SHARING)
    cluster.arrives("r1", prompt=17)
    cluster.arrives("r2", prompt=17)
    assert cluster.arrives("r3", prompt=17) == []
    assert cluster.steps("A", "r1 r2", shared=4, cached={"r2": 16}) == [
        "r1: 1 token at 0",
        "r2: 1 token at 0",
        "A: start r3",
    ]
    cluster.steps("A", "r1 r2 r3", shared=8, cached={"r3": 16})
    assert cluster.working_sets() == {"A": 3}


def test_requests_are_preempted_by_what_they_need_together(new_cluster: NewCluster) -> None:
    """Without sharing these two would not fit; when the sharing ends, they do not."""
    cluster = new_cluster()
    cluster.gpu_joins("A", pages=12, prefix_caching=SHARING)
    cluster.arrives("r1", prompt=15, max_tokens=20)
    cluster.arrives("r2", prompt=15, max_tokens=20)
    for _ in range(8):
        told = cluster.steps("A", "r1 r2", shared=4)
        assert not any("stop" in words for words in told)
    assert "A: stop r2" in cluster.steps("A", "r1 r2", shared=0)


def test_a_stop_on_its_way_leaves_the_accounting_whole(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.gpu_joins("A", pages=12, prefix_caching=SHARING)
    cluster.arrives("r1", prompt=17)
    cluster.arrives("r2", prompt=17)
    cluster.steps("A", "r1 r2", shared=4)
    cluster.is_cancelled("r1")
    cluster.is_cancelled("r2")
    assert cluster.working_sets() == {"A": 0}
    cluster.steps("A")
    assert cluster.scheduler.snapshot(cluster.now_ns).gpus[0].free_kv_pages == 12


def test_sharing_makes_room_for_the_head_while_a_stop_is_on_its_way(new_cluster: NewCluster) -> None:
    """The GPU needs a page less, though it has no more free pages than before."""
    cluster = new_cluster()
    cluster.gpu_joins("A", pages=12, prefix_caching=SHARING)
    for name, prompt in (("r1", 6), ("r2", 4), ("r3", 1)):
        cluster.arrives(name, prompt=prompt)
    cluster.steps("A", "r1 r2 r3")
    cluster.is_cancelled("r3")
    assert cluster.arrives("r4", prompt=27) == []
    assert "A: start r4" in cluster.steps("A", "r1 r2", applied=3, shared=1)
