"""What one event leads to, and the log of it."""

from dataclasses import dataclass, field

from punica_scheduler.actions import Action
from punica_scheduler.events import Event
from punica_scheduler.gpu import GpuRecord
from punica_scheduler.request import RequestRecord


@dataclass(slots=True)
class Decision:
    """One event's outcome while it is being worked out."""

    now_ns: int
    actions: list[Action] = field(default_factory=list)
    #: request_id -> UUID of the GPU that it was just taken from, where this decision does not put it back.
    barred: dict[str, str] = field(default_factory=dict)

    def allows(self, record: RequestRecord, gpu: GpuRecord) -> bool:
        """Whether this decision may place the request there."""
        return self.barred.get(record.request_id) != gpu.uuid


@dataclass(frozen=True, slots=True)
class StoryEntry:
    """One call of the scheduler. Its events, handled again in order, give its actions again: a bug report is a test."""

    now_ns: int
    event: Event
    actions: list[Action]
