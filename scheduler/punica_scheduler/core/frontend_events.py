"""Events from frontends: their links, their requests, and their calls about adapters."""

from punica_scheduler.core.actions import CallAnswered, Warm
from punica_scheduler.core.admission import refusal_on_arrival
from punica_scheduler.core.cluster_state import ClusterState
from punica_scheduler.core.events import RequestArrived
from punica_scheduler.core.limits_announcer import LimitsAnnouncer
from punica_scheduler.core.outcome import Outcome
from punica_scheduler.core.request import RequestRecord
from punica_serve.errors import PunicaError
from punica_serve.protocol import ForgetAdapter, WarmAdapter, WireError


class FrontendEvents:
    """One method for each event."""

    def __init__(self, state: ClusterState, limits: LimitsAnnouncer, max_queue: int) -> None:
        self._state = state
        self._limits = limits
        self._max_queue = max_queue

    def joined(self, frontend_id: str, outcome: Outcome) -> None:
        self.lost(frontend_id, outcome)
        self._limits.join(frontend_id, outcome)

    def lost(self, frontend_id: str, outcome: Outcome) -> None:
        self._limits.leave(frontend_id)
        for record in [record for record in self._state.requests.values() if record.frontend_id == frontend_id]:
            self._state.cancel(record, outcome)

    def request_arrived(self, event: RequestArrived, outcome: Outcome) -> None:
        record = RequestRecord.of(event.frontend_id, event.handle, event.request, was_admitted=not event.is_new)
        self._state.counters["arrived"] += 1
        previous = self._state.requests.get(record.request_id)
        if previous is not None and previous.frontend_id == record.frontend_id:
            self._state.cancel(previous, outcome)
        error = refusal_on_arrival(record, self._state, self._max_queue)
        if error is None and event.is_new:
            error = self._state.quotas.refusal(record, event.quota, outcome.now_ns)
        if error is not None:
            self._state.counters["failed"] += 1
            outcome.deliver_end(record, "error", WireError.of(error))
        else:
            self._state.admit(record, event.quota, outcome)
        if event.is_new and (limits := self._state.quotas.rate_limits(record, event.quota, outcome.now_ns)):
            outcome.rate_limits[record.frontend_id] = limits

    def request_cancelled(self, frontend_id: str, request_id: str, outcome: Outcome) -> None:
        record = self._state.requests.get(request_id)
        if record is not None and record.frontend_id == frontend_id:
            self._state.cancel(record, outcome)
            outcome.deliver_end(record, "cancelled")  # so that its GPU time is billed

    def warming_requested(self, frontend_id: str, call: WarmAdapter, outcome: Outcome) -> None:
        try:
            gpus = self._state.adapters.warm(call.adapter.digest, call.gpus)
        except PunicaError as error:
            outcome.actions.append(CallAnswered(frontend_id, call.call_id, WireError.of(error)))
            return
        outcome.actions += [Warm(gpu.uuid, call.adapter, call.pin) for gpu in gpus]
        outcome.actions.append(CallAnswered(frontend_id, call.call_id))

    def forgetting_requested(self, frontend_id: str, call: ForgetAdapter, outcome: Outcome) -> None:
        """The adapter is evicted once no request uses it."""
        self._state.adapters.evict(call.digest)
        outcome.actions.append(CallAnswered(frontend_id, call.call_id))
