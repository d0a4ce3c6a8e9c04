from punica_scheduler.core.placement import PLACEMENTS, FirstFitPlacement, MostIdlePlacement, RandomPlacement
from scheduler_in_words import Cluster, NewAdapter, NewCluster


def test_ties_go_to_the_highest_uuid(cluster: Cluster) -> None:
    assert cluster.arrives("r1") == ["B: start r1"]


def test_the_largest_working_set_wins(cluster: Cluster) -> None:
    cluster.arrives("r1")
    cluster.gpu_joins("C")
    assert cluster.arrives("r2") == ["B: start r2"]


def test_a_full_batch_is_passed_over(filled: NewCluster) -> None:
    cluster = filled("A", "B", batch=2)
    assert [cluster.arrives(f"r{i}") for i in range(1, 4)] == [["B: start r1"], ["B: start r2"], ["A: start r3"]]


def test_a_place_is_refilled_before_the_worker_tells_that_it_is_free(filled: NewCluster) -> None:
    cluster = filled("A", batch=2)
    cluster.arrives("r1", max_tokens=5)
    cluster.arrives("r2", max_tokens=9)
    assert cluster.arrives("r3", max_tokens=3) == []
    assert [cluster.steps("A", "r1 r2")[2:] for _ in range(3)] == [[], [], ["A: start r3"]], "two tokens are left"
    assert cluster.arrives("r4") == [], "one successor for one place"
    cluster.steps("A", "r1 r2")
    assert cluster.steps("A", "r1 r2", finished="r1")[2:] == []
    assert cluster.working_sets() == {"A": 2}


def test_a_successor_whose_predecessor_is_preempted_instead_waits_on_the_gpu(filled: NewCluster) -> None:
    cluster = filled("A", batch=1)
    cluster.arrives("r1", max_tokens=3)
    cluster.arrives("r2")
    assert cluster.steps("A", "r1")[1:] == ["A: start r2"]
    cluster.is_cancelled("r1")
    assert cluster.arrives("r3") == [] and cluster.working_sets() == {"A": 1}


def test_a_place_that_is_free_goes_before_one_that_will_be(new_cluster: NewCluster) -> None:
    """A newcomer on A would wait there for the last tokens of r1, though B could begin with it at once."""
    for placement in PLACEMENTS.values():
        cluster = new_cluster(placement=placement())
        cluster.gpu_joins("A", batch=1)
        cluster.arrives("r1", max_tokens=3)
        cluster.gpu_joins("B", batch=1)
        cluster.steps("A", "r1")
        assert cluster.arrives("r2") == ["B: start r2"]
        assert cluster.arrives("r3") == ["A: start r3"], "no other place is free"


def test_of_places_that_will_be_free_the_one_that_was_told_of_first_is_taken(filled: NewCluster) -> None:
    cluster = filled("A", "B", "C", batch=1)
    for name in ("c", "b", "a"):
        cluster.arrives(name, max_tokens=4)
    for uuid, name in (("A", "a"), ("A", "a"), ("B", "b"), ("B", "b"), ("C", "c")):
        cluster.steps(uuid, name)
    assert cluster.arrives("r1") == ["A: start r1"]
    assert cluster.arrives("r2") == ["B: start r2"]
    assert cluster.arrives("r3") == [], "C's request has more than two tokens to get"


def test_a_free_place_without_pages_does_not_keep_a_request_from_one_that_will_be_free(filled: NewCluster) -> None:
    cluster = filled("A", "B", batch=1)
    cluster.arrives("r1", max_tokens=20)
    cluster.arrives("r2", max_tokens=3)
    cluster.gpu_joins("C", pages=4)
    cluster.steps("A", "r2")
    assert cluster.arrives("long", prompt=30) == ["A: start long"]


def test_memory_is_for_prompt_and_one_token_whatever_max_tokens_says(filled: NewCluster) -> None:
    cluster = filled("A", pages=8)
    assert cluster.arrives("r1", prompt=14, max_tokens=18) == ["A: start r1"]  # 4 pages, though it may grow to 8
    assert cluster.arrives("r2", prompt=14, max_tokens=18) == ["A: start r2"]  # the other 4
    assert cluster.arrives("r3", prompt=1) == []


def test_a_request_that_would_be_evicted_before_its_first_token_does_not_start(filled: NewCluster) -> None:
    cluster = filled("A", pages=3)
    cluster.arrives("r1", prompt=1, max_tokens=7)
    assert cluster.arrives("r2", prompt=7, max_tokens=2) == []  # 2 pages are free, but the next steps take a fourth
    for _ in range(6):
        assert not [words for words in cluster.steps("A", "r1") if "r2" in words]
    assert cluster.steps("A", "r1", finished="r1")[1:] == ["A: start r2"]
    assert cluster.steps("A", "r2", finished="r2") == ["r2: 1 token at 0 stop"]
    assert cluster.counter("evictions") == 0


def test_evictions_are_bounded_by_the_pages_that_others_take(filled: NewCluster) -> None:
    cluster = filled("A", pages=6)
    for name in ("r1", "r2", "r3"):
        cluster.arrives(name, prompt=3, max_tokens=21)
    live = {"r1", "r2", "r3"}
    while live:
        running = [record.request_id for record in cluster.scheduler._fleet.gpus["A"].working_set.values()]
        ends = {name for name in running if len(cluster.delivered.get(name, [])) == 20}
        cluster.steps("A", " ".join(running), finished=" ".join(ends))
        live -= ends
    assert cluster.counter("evictions") <= 4
    assert cluster.delivered["r3"] == list(range(100, 121))


def test_memory_counts_generated_tokens_and_the_next(filled: NewCluster) -> None:
    cluster = filled("A", pages=4)
    cluster.arrives("r1", prompt=7, max_tokens=1)
    assert cluster.arrives("r2", prompt=4, generated=4) == []  # 9 tokens take 3 pages; 2 are free
    assert cluster.is_cancelled("r2") == []
    assert cluster.arrives("r3", prompt=4, max_tokens=4, generated=3) == ["A: start r3 after 3"]


def test_starts_that_are_not_acknowledged_count_as_used(filled: NewCluster) -> None:
    cluster = filled("A", pages=4)
    cluster.arrives("r1", prompt=8, max_tokens=2)  # 3 pages
    cluster.steps("A", applied=0)
    assert cluster.arrives("r2", prompt=4) == []  # 2 pages


def test_pages_of_a_stop_count_once_acknowledged(filled: NewCluster) -> None:
    cluster = filled("A", pages=4)
    cluster.arrives("r1", prompt=8, max_tokens=4)
    cluster.steps("A", "r1")
    assert cluster.is_cancelled("r1") == ["A: stop r1"]
    assert cluster.arrives("r2", prompt=8, max_tokens=4) == []
    assert cluster.steps("A", applied=1) == []
    assert cluster.steps("A", applied=2) == ["A: start r2"]


def test_a_start_and_its_stop_both_on_their_way_count_as_used(filled: NewCluster) -> None:
    cluster = filled("A", pages=4)
    cluster.arrives("r1", prompt=8, max_tokens=4)
    assert cluster.is_cancelled("r1") == ["A: stop r1"]
    assert cluster.arrives("r2", prompt=8, max_tokens=4) == []
    assert cluster.steps("A") == ["A: start r2"]


def test_the_whole_working_set_counts_as_used_also_what_waits_for_pages(filled: NewCluster) -> None:
    cluster = filled("A", pages=6)
    cluster.arrives("r1", prompt=8)
    cluster.workers["A"].num_tokens.clear()  # the worker has it, but has not taken its 3 pages yet
    cluster.steps("A")
    assert cluster.arrives("r2", prompt=12, max_tokens=4) == []


def test_the_adapters_of_a_working_set_fit_the_pool_together(filled: NewCluster, adapter: NewAdapter) -> None:
    cluster = filled("A", "B", lora=3)
    two_pages = adapter("two pages", rank=16)
    assert cluster.arrives("r1", lora=two_pages) == ["B: start r1"]
    assert cluster.arrives("r2", lora=adapter("two others", rank=9)) == ["A: start r2"]
    assert cluster.arrives("r3", lora=two_pages) == ["B: start r3"]  # shares r1's pages
    assert cluster.arrives("r4", lora=adapter("one page")) == ["B: start r4"]
    assert cluster.arrives("r5", lora=adapter("a third", rank=16)) == []
    assert cluster.steps("A", "r2", finished="r2") == ["r2: 1 token at 0 stop", "A: start r5"]


def test_most_idle_takes_the_smallest_working_set(new_cluster: NewCluster) -> None:
    cluster = new_cluster(placement=MostIdlePlacement())
    cluster.gpu_joins("A")
    cluster.gpu_joins("B")
    assert [cluster.arrives(f"r{i}")[0][0] for i in range(4)] == ["B", "A", "B", "A"]


def test_first_fit_takes_the_lowest_uuid_with_room(new_cluster: NewCluster) -> None:
    cluster = new_cluster(placement=FirstFitPlacement())
    for uuid in ("C", "A", "B"):
        cluster.gpu_joins(uuid, batch=2)
    assert [cluster.arrives(f"r{i}")[0][0] for i in range(5)] == ["A", "A", "B", "B", "C"]


def test_a_drawn_gpu_is_the_same_for_the_same_requests(new_cluster: NewCluster) -> None:
    def draw() -> list[str]:
        cluster = new_cluster(placement=RandomPlacement())
        for uuid in ("A", "B", "C"):
            cluster.gpu_joins(uuid, batch=20)
        return [cluster.arrives(f"r{i}", prompt=1, max_tokens=1)[0][0] for i in range(20)]

    assert draw() == draw()
    assert set(draw()) == {"A", "B", "C"}


def test_a_full_gpu_is_passed_over_by_every_policy(new_cluster: NewCluster) -> None:
    for placement in PLACEMENTS.values():
        cluster = new_cluster(placement=placement())
        cluster.gpu_joins("A", batch=1)
        cluster.gpu_joins("B", batch=1)
        cluster.arrives("r1")
        cluster.arrives("r2")
        assert cluster.arrives("r3") == []
        assert cluster.working_sets() == {"A": 1, "B": 1}
