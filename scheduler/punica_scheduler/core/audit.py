"""The scheduler's audit of its own state: invariants that hold between any two events."""

from collections import Counter

from punica_scheduler.core.cluster_state import ClusterState
from punica_scheduler.core.request import RequestRecord
from punica_scheduler.core.request_state import RequestState
from punica_serve.errors.invariants import require


def check_state(state: ClusterState) -> None:
    """Raises AssertionError where the state contradicts itself."""
    requests = state.requests.values()
    queued = [record for record in requests if record.state is RequestState.QUEUED]
    placed = [record for record in requests if record.state is RequestState.PLACED]
    require(len(queued) + len(placed) == len(requests), "a request that has ended is still there")
    counters = state.counters
    ended = counters["finished"] + counters["cancelled"] + counters["failed"]
    require(counters["arrived"] == ended + len(requests), "requests appeared or vanished")
    _check_waiting(queued, state)
    _check_placed(placed, state)
    state.fleet.check_invariants()
    tenant_ids = [record.request.tenant_id for record in requests]
    state.quotas.check_invariants(Counter(tenant_id for tenant_id in tenant_ids if tenant_id is not None))
    state.adapters.check_invariants(record.digest for record in requests)
    state.quarantine.check_invariants(state.fleet.gpus)


def _check_waiting(queued: list[RequestRecord], state: ClusterState) -> None:
    waiting = list(state.waiting)
    require({id(record) for record in waiting} == {id(record) for record in queued}, "not all wait who should")
    require(len(waiting) == len(queued) == len(state.waiting), "a request waits twice")
    state.waiting.check_invariants()
    state.hints.check_invariants(queued)
    for record in queued:
        require(record.assignment is None and record.gpu_uuid is None, f"{record.request_id} waits on a GPU")
        require(not record.is_complete, f"{record.request_id} waits for nothing")
    require(state.waiting.pinned.keys() <= state.fleet.gpus.keys(), "a request waits for a GPU that is no more")


def _check_placed(placed: list[RequestRecord], state: ClusterState) -> None:
    gpus = state.fleet.gpus
    for record in placed:
        assert record.gpu_uuid is not None and record.assignment is not None, f"{record.request_id} is nowhere"
        is_there = gpus[record.gpu_uuid].working_set[record.assignment.counter] is record
        require(is_there, f"{record.request_id} is not in its GPU's working set")
    require(sum(len(gpu.working_set) for gpu in gpus.values()) == len(placed), "a working set holds a stranger")
