"""What one event leads to, and the log of it."""

from msgspec import Struct, field
from msgspec.structs import replace

from punica_scheduler.actions import Action, Deliver
from punica_scheduler.events import Event
from punica_scheduler.gpu import GpuRecord
from punica_scheduler.request import RequestRecord
from punica_serve.protocol import Deliveries, Ending, FinishReason, WireError

_NO_TOKENS = Deliveries()


class Decision(Struct):
    """One event's outcome while it is being worked out."""

    now_ns: int
    #: All but the deliveries, until they are added at the end.
    actions: list[Action] = field(default_factory=list)
    #: Frontend id -> its tokens. An event brings one report at most, so they come all at once.
    deliveries: dict[str, Deliveries] = field(default_factory=dict)
    #: Frontend id -> which of its requests have ended.
    endings: dict[str, list[Ending]] = field(default_factory=dict)
    #: request_id -> UUID of the GPU that it was just taken from, where this decision does not put it back.
    barred: dict[str, str] = field(default_factory=dict)
    #: Whether something has left a GPU that is being drained, so that its runner may have to be told.
    has_drained: bool = False

    def allows(self, record: RequestRecord, gpu: GpuRecord) -> bool:
        """Whether this decision may place the request there."""
        return self.barred.get(record.request_id) != gpu.uuid

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
        )
        self.endings.setdefault(record.frontend_id, []).append(ending)

    def conclude(self) -> list[Action]:
        """All actions, deliveries first: clients wait for those."""
        for frontend_id, endings in self.endings.items():
            tokens = self.deliveries.get(frontend_id, _NO_TOKENS)
            self.deliveries[frontend_id] = replace(tokens, endings=tuple(endings))
        self.actions[:0] = [Deliver(frontend_id, deliveries) for frontend_id, deliveries in self.deliveries.items()]
        return self.actions


class StoryEntry(Struct, frozen=True):
    """One call of the scheduler. Handled again in order from its start on, events give the same actions again."""

    now_ns: int
    event: Event
    actions: list[Action]
