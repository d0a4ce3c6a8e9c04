"""GPUs that give pages back behind windows take requests of any length, and count no more pages than these hold."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from punica_scheduler.core.actions import AnnounceLimits
from punica_scheduler.core.events import FrontendJoined
from punica_scheduler.core.gpu import GpuRecord
from punica_serve.protocol import GpuInfo, KvWindow
from scheduler_in_words import Cluster, NewCluster

#: A request holds four pages of four tokens at most, and three once its prompt is computed.
WINDOW, MOST_PAGES = KvWindow(7, 4), 4


def test_a_request_of_many_windows_runs_where_the_pages_of_one_are(filled: NewCluster) -> None:
    cluster = filled("A", pages=MOST_PAGES, window=WINDOW)
    assert cluster.arrives("r1", prompt=1_000, max_tokens=5_000) == ["A: start r1"]
    for position in range(40):
        assert cluster.steps("A", "r1") == [f"r1: 1 token at {position}"]
    assert cluster.counter("evictions") == 0


def test_one_page_less_holds_what_it_holds_and_no_more(filled: NewCluster) -> None:
    cluster = filled("A", pages=MOST_PAGES - 1, window=WINDOW)
    assert cluster.arrives("r1", prompt=11, max_tokens=2) == ["r1: context_length_exceeded"]
    assert "holds" in cluster.error.message and "max_tokens to 1 or less" in cluster.error.message
    assert cluster.arrives("r2", prompt=11, max_tokens=1) == ["A: start r2"]


def test_requests_share_a_pool_by_what_each_may_hold(filled: NewCluster) -> None:
    cluster = filled("A", pages=2 * MOST_PAGES + 1, window=WINDOW)
    assert cluster.arrives("r1", prompt=500, max_tokens=900) == ["A: start r1"]
    assert cluster.arrives("r2", prompt=9, max_tokens=900) == ["A: start r2"]
    assert cluster.arrives("r3", prompt=90, max_tokens=900) == [], "one page is left"
    for position in range(30):
        assert cluster.steps("A", "r1 r2") == [f"r1: 1 token at {position}", f"r2: 1 token at {position}"]
    assert cluster.steps("A", "r1 r2", finished="r2")[1:] == ["r2: 1 token at 30 stop", "A: start r3"]


def test_the_pages_of_a_prompts_chunks_are_free_once_its_answer_begins(filled: NewCluster) -> None:
    cluster = filled("A", pages=2 * MOST_PAGES - 1, window=WINDOW)
    assert cluster.arrives("r1", prompt=100, max_tokens=900) == ["A: start r1"]
    assert cluster.arrives("r2", prompt=100, max_tokens=900) == []
    assert cluster.steps("A", "r1") == ["r1: 1 token at 0", "A: start r2"]


def test_the_next_long_request_goes_where_the_pages_of_a_window_are(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.gpu_joins("B", pages=2 * MOST_PAGES, window=WINDOW)
    cluster.gpu_joins("A", pages=2 * MOST_PAGES, window=WINDOW)
    cluster.arrives("r1", prompt=100, max_tokens=900)
    cluster.arrives("r2", prompt=100, max_tokens=900)
    assert cluster.working_sets() == {"A": 0, "B": 2}
    assert cluster.arrives("r3", prompt=100, max_tokens=900) == ["A: start r3"]


@pytest.mark.parametrize(("pages", "has_room"), [(2 * MOST_PAGES + 2, True), (2 * MOST_PAGES + 1, False)])
def test_long_requests_move_together_where_the_pages_of_their_windows_are(
    pages: int, has_room: bool, filled: NewCluster
) -> None:
    """Each has a free page beside them then."""
    cluster = filled("A", pages=64, window=WINDOW)
    for name in ("r1", "r2"):
        cluster.arrives(name, prompt=100, max_tokens=900)
    records = tuple(cluster.scheduler._fleet.gpus["A"].working_set.values())
    target = GpuRecord(GpuInfo("B", "cpu", 8, 4, pages, {}, window=WINDOW), "runner")
    assert target.has_room_for_all(records) is has_room


def test_frontends_are_told_of_no_limit(filled: NewCluster) -> None:
    cluster = filled("A", pages=MOST_PAGES, window=WINDOW)
    cluster.tell(FrontendJoined("f"))
    (limits,) = [action.limits for action in cluster.actions if isinstance(action, AnnounceLimits)]
    assert (limits.num_gpus, limits.max_request_tokens) == (1, None)


@settings(max_examples=examples(60), deadline=None)
@given(
    pages=st.integers(4, 14),
    window=st.builds(KvWindow, st.integers(1, 12), st.integers(1, 5)),
    requests=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=5),
    num_steps=st.integers(1, 40),
)
def test_the_sums_are_those_of_each_request_through_every_step(
    pages: int, window: KvWindow, requests: list[tuple[int, int]], num_steps: int
) -> None:
    """Whole reports and single rows count alike: each word is followed by an audit that recomputes all sums."""
    cluster = Cluster()
    cluster.gpu_joins("A", pages=pages, window=window)
    left = {f"r{number}": max_tokens for number, (_, max_tokens) in enumerate(requests)}
    for name, (num_prompt, max_tokens) in zip(left, requests, strict=True):
        cluster.arrives(name, prompt=num_prompt, max_tokens=max_tokens)
    for _ in range(num_steps):
        gpu = cluster.scheduler._fleet.gpus["A"]
        names = [record.request_id for record in gpu.working_set.values()]
        for name in names:
            left[name] -= 1
        cluster.steps("A", " ".join(names), finished=" ".join(name for name in names if not left[name]))
        needed = sum(
            gpu.page_rule.held_decoding(record.num_tokens_after(2))
            if record.num_generated
            else gpu.page_rule.held_by(record.num_tokens_after(2))
            for record in gpu.working_set.values()
        )
        assert gpu.num_pages_needed == needed <= pages
