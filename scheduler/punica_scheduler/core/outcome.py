"""The outcome of one event, and the event log's entry for it."""

from msgspec import Struct, field
from msgspec.structs import replace

from punica_scheduler.core.actions import Action, Deliver, RecordEvent, RecordTokens
from punica_scheduler.core.events import Event
from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.request import RequestRecord
from punica_serve.protocol import Deliveries, Ending, FinishReason, MarkKind, RateLimits, WireError

_NO_TOKENS = Deliveries()


class Outcome(Struct):
    """The outcome of one event while it is worked out."""

    now_ns: int
    #: All but the deliveries, until they are added at the end.
    actions: list[Action] = field(default_factory=list)
    #: Frontend id -> its tokens. An event brings one report at most, so they come all at once.
    deliveries: dict[str, Deliveries] = field(default_factory=dict)
    #: Frontend id -> which of its requests have ended.
    endings: dict[str, list[Ending]] = field(default_factory=dict)
    #: Frontend id -> what its tenant's quota leaves the request that has arrived.
    rate_limits: dict[str, RateLimits] = field(default_factory=dict)
    #: Frontend id -> handles of its requests that have begun, with their prompt tokens found in the KvCache.
    cached: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    #: request_id -> UUID of the GPU that it was just taken from, to which this event does not return it.
    barred: dict[str, str] = field(default_factory=dict)
    #: A request has left a draining GPU, so its runner may be due for RunnerDrained.
    has_drained: bool = False
    #: For telemetry; see ``RecordTokens``. An event brings one step report at most.
    first_token_ns: list[int] = field(default_factory=list)
    inter_token_ns: int = 0
    num_continued: int = 0

    def allows(self, record: RequestRecord, gpu: GpuRecord) -> bool:
        """Whether this event may place the request there."""
        return self.barred.get(record.request_id) != gpu.uuid

    def record_event(self, kind: MarkKind, gpu_uuid: str) -> None:
        """Tells telemetry what has happened, and on which GPU."""
        self.actions.append(RecordEvent(kind, gpu_uuid))

    def deliver_end(self, record: RequestRecord, reason: FinishReason, error: WireError | None = None) -> None:
        """Tells the request's frontend that nothing follows."""
        ending = Ending(
            record.handle,
            record.num_generated,
            reason,
            error,
            gpu_s=record.gpu_s,
            queue_s=record.queue_s,
            num_evictions=record.num_evictions,
            prefill_s=record.prefill_s,
        )
        self.endings.setdefault(record.frontend_id, []).append(ending)

    def take_actions(self) -> list[Action]:
        """All actions, deliveries first: clients wait for those."""
        for frontend_id, cached in self.cached.items():
            self.deliveries[frontend_id] = replace(self.deliveries.get(frontend_id, _NO_TOKENS), cached=tuple(cached))
        for frontend_id, endings in self.endings.items():
            tokens = self.deliveries.get(frontend_id, _NO_TOKENS)
            self.deliveries[frontend_id] = replace(tokens, endings=tuple(endings))
        for frontend_id, rate_limits in self.rate_limits.items():
            others = self.deliveries.get(frontend_id, _NO_TOKENS)
            self.deliveries[frontend_id] = replace(others, rate_limits=(rate_limits,))
        if self.num_continued or self.first_token_ns:
            self.actions.append(RecordTokens(tuple(self.first_token_ns), self.inter_token_ns, self.num_continued))
        self.actions[:0] = [Deliver(frontend_id, deliveries) for frontend_id, deliveries in self.deliveries.items()]
        return self.actions


class LoggedEvent(Struct, frozen=True):
    """One call of the scheduler: an event with its actions."""

    now_ns: int
    event: Event
    actions: list[Action]
