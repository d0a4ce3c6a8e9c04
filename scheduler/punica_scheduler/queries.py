"""Answers to calls of frontends that only read."""

from punica_scheduler.core.scheduler import Scheduler
from punica_scheduler.telemetry.observer import ClusterObserver
from punica_serve.errors import PunicaError
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
    WireError,
)

Query = GetCluster | GetGpu | GetHistory | GetResidency
Reply = ClusterReply | GpuReply | HistoryReply | ResidencyReply


def answer(query: Query, scheduler: Scheduler, observer: ClusterObserver, now_ns: int) -> Reply | CallReply:
    """The reply to send. A CallReply has the error, such as that of an unknown GPU."""
    try:
        match query:
            case GetCluster(call_id):
                return ClusterReply(call_id, observer.snapshot(now_ns))
            case GetGpu(call_id, gpu):
                return GpuReply(call_id, observer.gpu(gpu, now_ns))
            case GetHistory(call_id):
                return HistoryReply(call_id, observer.history())
            case GetResidency(call_id, digests):
                return ResidencyReply(call_id, scheduler.residency(digests))
    except PunicaError as error:
        return CallReply(query.call_id, WireError.of(error))
