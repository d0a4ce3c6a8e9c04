"""Where adapters are, and how they are prefetched and evicted."""

import pytest

from punica_scheduler.core import events
from punica_scheduler.core.actions import Action, CallAnswered, Forget, Warm
from punica_serve.errors import ClusterUnavailable
from punica_serve.protocol import AdapterRef, AdapterResidency, AdaptersCached, ForgetAdapter, WarmAdapter
from scheduler_in_words import Cluster, NewAdapter, NewCluster


def tells(cluster: Cluster, gpu_uuid: str | None, *, came: str = "", left: str = "", runner: str = "runner") -> None:
    change = AdaptersCached(gpu_uuid, tuple(came.split()), tuple(left.split()))
    cluster.tell(events.AdaptersCached(runner, change))


def warms(cluster: Cluster, adapter: AdapterRef, *gpu_uuids: str, pin: bool | None = None) -> list[Action]:
    cluster.tell(events.WarmingRequested("f", WarmAdapter(3, adapter, gpu_uuids, pin)))
    return cluster.actions


def evicts(cluster: Cluster, digest: str) -> list[tuple[str, str]]:
    cluster.tell(events.ForgettingRequested("f", ForgetAdapter(4, digest)))
    return evicted(cluster)


def evicted(cluster: Cluster) -> list[tuple[str, str]]:
    """Which runners were told to evict what by the newest event."""
    return [(action.runner_id, action.digest) for action in cluster.actions if isinstance(action, Forget)]


def test_residency_follows_what_workers_and_runners_tell(cluster: Cluster) -> None:
    tells(cluster, "A", came="x y")
    tells(cluster, None, came="x")
    tells(cluster, "nobody", came="z")
    everything = (AdapterResidency("x", 0, (), ("A",), ("runner",)), AdapterResidency("y", 0, (), ("A",), ()))
    assert cluster.scheduler.residency(()) == everything
    tells(cluster, "A", left="y")
    assert cluster.scheduler.residency(("y", "z")) == ()


def test_what_is_lost_is_nowhere(cluster: Cluster) -> None:
    tells(cluster, "A", came="x")
    tells(cluster, None, came="x")
    cluster.gpu_is_lost("A")
    assert cluster.scheduler.residency(()) == (AdapterResidency("x", 0, (), (), ("runner",)),)
    cluster.tell(events.RunnerLost("runner"))
    assert cluster.scheduler.residency(()) == ()


def test_requests_that_run_or_wait_count_as_live(new_cluster: NewCluster, adapter: NewAdapter) -> None:
    cluster = new_cluster()
    cluster.gpu_joins("A", batch=1)
    for name in ("r1", "r2"):
        cluster.arrives(name, lora=adapter("x"))
    assert cluster.scheduler.residency(("x",)) == (AdapterResidency("x", 2),)
    cluster.steps("A", "r1", finished="r1")
    assert cluster.scheduler.residency(("x",))[0].num_live == 1
    cluster.is_cancelled("r2")
    assert cluster.scheduler.residency(()) == ()


def test_an_adapter_is_warmed_where_it_is_asked_for(cluster: Cluster, adapter: NewAdapter) -> None:
    x = adapter("x")
    assert warms(cluster, x, "B", pin=True) == [Warm("B", x, True), CallAnswered("f", 3)]
    assert warms(cluster, x) == [Warm("A", x, None), Warm("B", x, None), CallAnswered("f", 3)]


@pytest.mark.parametrize("gpus", ["", "A"])
def test_an_adapter_can_t_be_warmed_where_nothing_is(new_cluster: NewCluster, adapter: NewAdapter, gpus: str) -> None:
    cluster = new_cluster()
    for uuid in gpus:
        cluster.gpu_joins(uuid)
    (answer,) = warms(cluster, adapter("x"), "C")
    assert isinstance(answer, CallAnswered) and answer.error is not None
    assert answer.error.code == ("gpu_not_found" if gpus else "cluster_unavailable")


def test_an_adapter_is_evicted_when_its_last_request_ends(cluster: Cluster, adapter: NewAdapter) -> None:
    cluster.tell(events.RunnerJoined("host"))
    for name in ("r1", "r2"):
        cluster.arrives(name, lora=adapter("x"))
    assert evicts(cluster, "x") == []
    cluster.steps("B", "r1 r2", finished="r1")
    assert evicted(cluster) == []
    cluster.is_cancelled("r2")
    assert evicted(cluster) == [("host", "x")]
    assert evicts(cluster, "x") == [("host", "x")]


def test_whoever_warms_an_adapter_wants_it_no_longer_evicted(cluster: Cluster, adapter: NewAdapter) -> None:
    cluster.tell(events.RunnerJoined("host"))
    cluster.arrives("r1", lora=adapter("x"))
    evicts(cluster, "x")
    warms(cluster, adapter("x"))
    cluster.is_cancelled("r1")
    assert evicted(cluster) == []


def test_nothing_is_evicted_or_known_to_be_gone_before_frontends_have_told_what_they_own(
    new_cluster: NewCluster,
) -> None:
    cluster = new_cluster(settle_ns=10**9)
    cluster.tell(events.RunnerJoined("host"))
    assert evicts(cluster, "x") == []
    with pytest.raises(ClusterUnavailable, match="just started"):
        cluster.scheduler.residency(())
    cluster.time_passes(2)
    assert evicted(cluster) == [("host", "x")]
    assert cluster.scheduler.residency(()) == ()
