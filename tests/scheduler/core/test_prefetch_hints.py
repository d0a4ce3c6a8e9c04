"""Which GPUs are told of an adapter whose request waits, and when not."""

import pytest

from punica_scheduler.core import events, prefetch_hints
from punica_scheduler.core.actions import Warm
from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.placement import FirstFitPlacement
from punica_scheduler.core.prefetch_hints import MAX_PER_GPU, MEAN_PER_GPU, PrefetchHints
from punica_serve.protocol import AdaptersCached
from scheduler_in_words import Cluster, NewAdapter, NewCluster


def hinted(cluster: Cluster) -> list[str]:
    """The newest event's hints, in words."""
    warms = [action for action in cluster.actions if isinstance(action, Warm)]
    assert all(warm.host_only and warm.pin is None for warm in warms)
    return sorted(f"{warm.gpu_uuid}: {warm.adapter.digest}" for warm in warms)


def hints_of(cluster: Cluster) -> PrefetchHints:
    return cluster.scheduler._state.hints


@pytest.fixture
def full(new_cluster: NewCluster) -> NewCluster:
    """Called with UUIDs: GPUs of one row each, which all run a request without an adapter, r-UUID."""

    def fill(*uuids: str, **settings: object) -> Cluster:
        cluster = new_cluster(**settings)
        for uuid in uuids:
            cluster.gpu_joins(uuid, batch=1)
            cluster.arrives(f"r-{uuid}")
        assert set(cluster.working_sets().values()) == {1}
        return cluster

    return fill


def test_a_request_that_waits_has_its_adapter_hinted_to_two_gpus(full: NewCluster, adapter: NewAdapter) -> None:
    cluster = full("A", "B", "C", "D")
    assert cluster.arrives("waits", lora=adapter("x")) == []
    first = hinted(cluster)
    assert len(first) == 2 and all(line.endswith(": x") for line in first)
    cluster.arrives("waits too", lora=adapter("x"))
    assert hinted(cluster) == [], "once for each GPU"
    cluster.time_passes(1)
    assert hinted(cluster) == []


def test_a_request_that_is_placed_at_once_or_has_no_adapter_has_no_hint(full: NewCluster, adapter: NewAdapter) -> None:
    cluster = full("A")
    cluster.arrives("waits")
    assert hinted(cluster) == []
    cluster.gpu_joins("B")
    assert cluster.arrives("placed", lora=adapter("x")) == ["B: start placed"]
    assert hinted(cluster) == [] and not hints_of(cluster)._gpus and not hints_of(cluster)._unhinted


def test_different_adapters_spread_over_the_gpus(full: NewCluster, adapter: NewAdapter) -> None:
    cluster = full(*(f"{number:02}" for number in range(20)))
    told = set()
    for number in range(100):
        cluster.arrives(f"w{number}", lora=adapter(f"x{number}"))
        told |= {line.split(":")[0] for line in hinted(cluster)}
    assert len(told) == 20


def test_the_gpu_that_placement_would_try_first_is_told(new_cluster: NewCluster, adapter: NewAdapter) -> None:
    """It has a place, but its LoRA pool is full; by the digest, others would be told."""
    cluster = new_cluster(placement=FirstFitPlacement())
    for number in range(9):
        cluster.gpu_joins(f"{number}", lora=1)
        cluster.arrives(f"r{number}", lora=adapter(f"y{number}"))
    for number in range(5):
        cluster.arrives(f"w{number}", lora=adapter(f"x{number}"))
        assert f"0: x{number}" in hinted(cluster)


def test_a_gpu_that_has_the_adapter_needs_no_hint(full: NewCluster, adapter: NewAdapter) -> None:
    cluster = full("A", "B")
    cluster.tell(events.AdaptersCached("runner", AdaptersCached("A", ("x",))))
    cluster.arrives("w1", lora=adapter("x"))
    assert hinted(cluster) == ["B: x"]
    cluster.reports("B", [], resident=("y",))
    cluster.arrives("w2", lora=adapter("y"))
    assert hinted(cluster) == ["A: y"]


def test_a_gpu_that_could_not_load_the_adapter_has_no_hint(full: NewCluster, adapter: NewAdapter) -> None:
    cluster = full("A")
    cluster.gpu_joins("B", batch=1, lora=1)
    cluster.arrives("r-B")
    cluster.arrives("waits", lora=adapter("x", 16))
    assert hinted(cluster) == ["A: x"]


@pytest.mark.parametrize("leaves", ["placed", "cancelled"])
def test_a_request_that_no_longer_waits_frees_its_hints(full: NewCluster, adapter: NewAdapter, leaves: str) -> None:
    cluster = full("A", "B")
    cluster.arrives("w1", lora=adapter("x"))
    if leaves == "placed":
        assert cluster.steps("A", "r-A", finished="r-A")[1:] == ["A: start w1"]
    else:
        cluster.is_cancelled("w1")
    assert not hints_of(cluster)._hints and not hints_of(cluster)._num_hints
    cluster.arrives("w2", lora=adapter("x"))
    assert hinted(cluster) == (["B: x"] if leaves == "placed" else ["A: x", "B: x"])


def test_hints_reach_a_bounded_part_of_the_queue_and_move_on_with_it(full: NewCluster, adapter: NewAdapter) -> None:
    cluster = full("A")
    for number in range(2 * MEAN_PER_GPU):
        cluster.arrives(f"w{number}", lora=adapter(f"x{number}"))
        assert hinted(cluster) == ([f"A: x{number}"] if number < MEAN_PER_GPU else [])
    cluster.steps("A", "r-A", finished="r-A")
    assert hinted(cluster) == [f"A: x{MEAN_PER_GPU}"], "the first that had none"
    cluster.is_cancelled("w5")
    assert hinted(cluster) == [f"A: x{MEAN_PER_GPU + 1}"]


def test_no_gpu_has_more_hints_than_its_share(
    new_cluster: NewCluster, adapter: NewAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are drawn to A and B: beyond their shares, hints are left out."""
    monkeypatch.setattr(prefetch_hints, "crc32", lambda _: 0)
    cluster = new_cluster()
    for uuid in "ABCDEFGH":
        cluster.gpu_joins(uuid, batch=1)
        cluster.arrives(f"r-{uuid}")
    told: list[str] = []
    for number in range(2 * MAX_PER_GPU):
        cluster.arrives(f"w{number}", lora=adapter(f"x{number}"))
        told += hinted(cluster)
    assert sorted(line[0] for line in told) == ["A"] * MAX_PER_GPU + ["B"] * MAX_PER_GPU


def test_gpus_that_drain_have_no_hints(full: NewCluster, adapter: NewAdapter) -> None:
    cluster = full("A", "B")
    cluster.is_drained("A")
    cluster.arrives("w1", lora=adapter("x"))
    assert hinted(cluster) == ["B: x"]
    cluster.is_drained("B")
    assert not hints_of(cluster)._hints
    cluster.arrives("w2", lora=adapter("y"))
    assert hinted(cluster) == []
    cluster.is_drained("A", drain=False)
    assert hinted(cluster) == ["A: x", "A: y"], "requests that nobody was told of are next"


def test_gpus_that_are_lost_take_their_hints_with_them(full: NewCluster, adapter: NewAdapter) -> None:
    cluster = full("A")
    cluster.arrives("w1", lora=adapter("x"))
    cluster.arrives("w2", lora=adapter("y"))
    cluster.gpu_is_lost("A")
    assert not hints_of(cluster)._hints
    cluster.gpu_joins("A", batch=1)
    assert hinted(cluster) == ["A: x", "A: y"], "it came back empty, and runs what it ran"


def test_a_request_that_has_run_has_no_hint(full: NewCluster, adapter: NewAdapter) -> None:
    """Its adapter may have killed the worker."""
    cluster = full("A")
    cluster.gpu_joins("B", batch=1)
    cluster.arrives("ran", lora=adapter("x"), at=1)
    cluster.steps("B")
    cluster.gpu_is_lost("B")
    assert cluster.scheduler.snapshot(cluster.now_ns).queue_length == 1
    assert hinted(cluster) == []


def test_before_all_have_settled_nobody_is_told(new_cluster: NewCluster, adapter: NewAdapter) -> None:
    cluster = new_cluster(settle_ns=10**9)
    cluster.gpu_joins("A", batch=1)
    for name in ("w1", "w2"):
        cluster.arrives(name, lora=adapter(name))
        assert hinted(cluster) == []
    assert cluster.time_passes(2) == ["A: start w1"]
    assert hinted(cluster) == ["A: w2"]


def test_one_event_looks_at_few_requests_and_gpus(
    filled: NewCluster, adapter: NewAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = filled()
    for number in range(100):
        cluster.arrives(f"w{number}", lora=adapter(f"x{number}"), prompt=100)
    asked: list[str] = []
    lacks = PrefetchHints._lacks

    def noted(hints: PrefetchHints, gpu: GpuRecord, digest: str) -> bool:
        asked.append(digest)
        return lacks(hints, gpu, digest)

    monkeypatch.setattr(PrefetchHints, "_lacks", noted)
    for number in range(100):
        cluster.gpu_joins(f"{number:03}", batch=1, pages=100)
        assert len(asked) <= 16
        asked.clear()
