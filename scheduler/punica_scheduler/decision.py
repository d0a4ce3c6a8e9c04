"""What one event leads to, and the log of it."""

from msgspec import Struct, field

from punica_scheduler.actions import Action, Deliver
from punica_scheduler.delivery import DeliveryColumns
from punica_scheduler.events import Event
from punica_scheduler.gpu import GpuRecord
from punica_scheduler.request import RequestRecord
from punica_serve.protocol import Ending, FinishReason, WireError


class Decision(Struct):
    """One event's outcome while it is being worked out."""

    now_ns: int
    #: All but the deliveries, until they are added at the end.
    actions: list[Action] = field(default_factory=list)
    #: Of each frontend that has to be told something.
    deliveries: dict[str, DeliveryColumns] = field(default_factory=dict)
    #: request_id -> UUID of the GPU that it was just taken from, where this decision does not put it back.
    barred: dict[str, str] = field(default_factory=dict)
    #: Whether something has left a GPU that is being drained, so that its runner may have to be told.
    has_drained: bool = False

    def allows(self, record: RequestRecord, gpu: GpuRecord) -> bool:
        """Whether this decision may place the request there."""
        return self.barred.get(record.request_id) != gpu.uuid

    def columns_of(self, frontend_id: str) -> DeliveryColumns:
        """Where the frontend's tokens and ends go."""
        columns = self.deliveries.get(frontend_id)
        if columns is None:
            columns = self.deliveries[frontend_id] = DeliveryColumns()
        return columns

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
        self.columns_of(record.frontend_id).endings.append(ending)

    def conclude(self) -> list[Action]:
        """All actions, deliveries first: clients wait for those."""
        self.actions[:0] = [Deliver(frontend_id, columns.message()) for frontend_id, columns in self.deliveries.items()]
        return self.actions


class StoryEntry(Struct, frozen=True):
    """One call of the scheduler. Handled again in order from its start on, events give the same actions again."""

    now_ns: int
    event: Event
    actions: list[Action]
