"""A store that gives nothing: requests that wait for it take no place that others could use."""

from collections.abc import Callable
from functools import partial

import pytest

from punica_scheduler.core import events
from punica_scheduler.core.actions import Deliver
from punica_serve.protocol import AdaptersCached
from scheduler_in_words import Cluster, NewAdapter, NewCluster


def is_cached(cluster: Cluster, digest: str, *, gpu: str | None = None) -> list[str]:
    words: list[str] = cluster.tell(events.AdaptersCached("runner", AdaptersCached(gpu, (digest,), ())))
    return words


@pytest.fixture
def fails(cluster: Cluster) -> Callable[[str, str], list[str]]:
    """The store does not give a request's adapter to a GPU."""
    return partial(cluster.load_fails, code="store_unavailable")


@pytest.fixture
def waiting(cluster: Cluster, adapter: NewAdapter, fails: Callable[[str, str], list[str]]) -> Cluster:
    """The cluster with a request that waits waiting: the store failed it on two GPUs."""
    assert cluster.arrives("r1", lora=adapter("x")) == ["B: start r1"]
    assert fails("B", "r1") == ["A: start r1"], "elsewhere first: it may be the host's fault"
    assert fails("A", "r1") == []
    return cluster


def test_a_request_that_awaits_its_adapter_takes_no_place_and_blocks_nobody(waiting: Cluster) -> None:
    assert waiting.working_sets() == {"A": 0, "B": 0}
    assert waiting.arrives("r2") == ["B: start r2"]
    assert waiting.scheduler.snapshot(waiting.now_ns).queue_length == 1


@pytest.mark.parametrize("gpu", [None, "A"])
def test_it_is_back_at_its_place_as_soon_as_its_adapter_is_somewhere(
    waiting: Cluster, adapter: NewAdapter, gpu: str | None
) -> None:
    for number in range(2, 18):
        waiting.arrives(f"r{number}")  # fill both batches of eight
    assert waiting.arrives("late") == []
    assert is_cached(waiting, "y") == []
    assert is_cached(waiting, "x", gpu=gpu) == []
    assert waiting.is_cancelled("r2") == ["B: stop r2", "B: start r1"], "it came first"


def test_its_last_try_comes_by_the_clock(waiting: Cluster, fails: Callable[[str, str], list[str]]) -> None:
    assert waiting.time_passes(29.0) == []
    assert waiting.time_passes(2.0) == ["B: start r1"]
    assert fails("B", "r1") == ["r1: store_unavailable"]


def test_the_wait_for_an_adapter_counts_as_queue_time(waiting: Cluster) -> None:
    waiting.time_passes(31.0)
    waiting.steps("B", "r1", finished="r1")
    (end,) = [end for action in waiting.actions if isinstance(action, Deliver) for end in action.deliveries.endings]
    assert end.queue_s == pytest.approx(31.0, abs=0.5)


def test_it_can_be_cancelled(waiting: Cluster) -> None:
    assert waiting.is_cancelled("r1") == []
    assert is_cached(waiting, "x") == []
    assert waiting.time_passes(60.0) == []
    assert waiting.scheduler.snapshot(waiting.now_ns).queue_length == 0


def test_what_has_come_between_the_failure_and_its_report_is_not_waited_for(
    cluster: Cluster, adapter: NewAdapter, fails: Callable[[str, str], list[str]]
) -> None:
    cluster.arrives("r1", lora=adapter("x"))
    assert fails("B", "r1") == ["A: start r1"]
    is_cached(cluster, "x")
    assert fails("A", "r1") == ["B: start r1"]


def test_after_a_failure_a_host_with_the_adapter_is_preferred(new_cluster: NewCluster, adapter: NewAdapter) -> None:
    cluster = new_cluster()
    for uuid, runner in (("A", "runner"), ("B", "other"), ("C", "other")):
        cluster.gpu_joins(uuid, runner=runner)
    is_cached(cluster, "x")
    assert cluster.arrives("r1", lora=adapter("x")) == ["C: start r1"], "placement does not ask"
    assert cluster.load_fails("C", "r1", code="store_unavailable") == ["A: start r1"]
    assert cluster.arrives("r2", lora=adapter("y")) == ["A: start r2"]
    assert cluster.load_fails("A", "r2", code="store_unavailable") == ["C: start r2"], "nobody has it"


def test_requests_that_await_adapters_are_bounded(new_cluster: NewCluster, adapter: NewAdapter) -> None:
    cluster = new_cluster(max_queue=2)
    cluster.gpu_joins("A")
    for number in range(3):
        cluster.arrives(f"r{number}", lora=adapter(f"x{number}"))
        cluster.load_fails("A", f"r{number}", code="store_unavailable")
        cluster.time_passes(0.1)
        cluster.load_fails("A", f"r{number}", code="store_unavailable")
        cluster.time_passes(0.1)
    assert cluster.load_fails("A", "r2", code="store_unavailable") == ["r2: store_unavailable"]
    assert cluster.scheduler.snapshot(cluster.now_ns).queue_length == 2
    assert cluster.arrives("base") == ["A: start base"]


def test_however_many_await_adapters_others_find_gpus(filled: NewCluster, adapter: NewAdapter) -> None:
    """Forty times what all batches hold; each report of the store's silence frees the place at once."""
    cluster = filled("A", "B", batch=4)
    for number in range(320):
        name = f"r{number}"
        started = cluster.arrives(name, lora=adapter(f"x{number}"))
        while started:
            ((gpu, _, _),) = [word.split() for word in started]
            started = cluster.load_fails(gpu.rstrip(":"), name, code="store_unavailable")
    assert cluster.arrives("base") == ["B: start base"]
    assert cluster.counter("failed") == 0
