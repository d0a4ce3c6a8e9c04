from collections.abc import Callable

from punica_scheduler.queries import Query, Reply, answer
from punica_serve.protocol import (
    CallReply,
    ClusterReply,
    GetCluster,
    GetGpu,
    GetHistory,
    GetResidency,
    GpuReply,
    HistoryReply,
    ResidencyReply,
    decode_history,
)
from scheduler_in_words import Cluster


def _ask(cluster: Cluster, query: Query) -> Reply | CallReply:
    return answer(query, cluster.scheduler, cluster.observer, cluster.now_ns)


def test_each_question_has_its_reply(cluster: Cluster) -> None:
    snapshot = _ask(cluster, GetCluster(1))
    assert isinstance(snapshot, ClusterReply) and snapshot.call_id == 1
    assert [gpu.gpu.uuid for gpu in snapshot.cluster.gpus] == ["A", "B"]
    details = _ask(cluster, GetGpu(2, "B"))
    assert isinstance(details, GpuReply) and details.call_id == 2 and details.details.gpu.gpu.uuid == "B"
    history = _ask(cluster, GetHistory(3))
    assert isinstance(history, HistoryReply) and history.call_id == 3
    assert decode_history(history.history).at_ns == ()
    assert _ask(cluster, GetResidency(4, ())) == ResidencyReply(4, ())


def test_an_unknown_gpu_is_an_error_of_the_call(cluster: Cluster) -> None:
    reply = _ask(cluster, GetGpu(5, "C"))
    assert isinstance(reply, CallReply) and reply.call_id == 5
    assert reply.error is not None and reply.error.code == "gpu_not_found"


def test_residency_is_unknown_while_frontends_add_theirs(new_cluster: Callable[..., Cluster]) -> None:
    reply = _ask(new_cluster(settle_ns=10**9), GetResidency(6, ()))
    assert isinstance(reply, CallReply) and reply.call_id == 6
    assert reply.error is not None and reply.error.code == "cluster_unavailable"
