"""How a scheduler decides, without a word about files; ``factory`` makes these from the config."""

from dataclasses import dataclass, field

from punica_scheduler.advice import ScaleRule
from punica_scheduler.consolidation import ConsolidationRule
from punica_scheduler.placement import Placement, punica


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """The defaults are the paper's, with no limit of time, no consolidation and no audit."""

    placement: Placement = punica
    #: One of ``queues.QUEUES``.
    queue: str = "fcfs"
    #: Whether an evicted request may go on elsewhere.
    migration: bool = True
    max_queue: int = 10_000
    queue_timeout_ns: int = 600 * 10**9
    #: How long a request waits aside for an adapter that the store does not give, before it is tried a last time.
    store_patience_ns: int = 30 * 10**9
    #: For so long from the start nothing is placed or refused for its size: after a restart all come back in any order.
    settle_ns: int = 0
    consolidation: ConsolidationRule | None = None
    scale: ScaleRule = field(default_factory=ScaleRule)
    #: Check the books after every so manieth event; 0 is never.
    audit_every: int = 0
