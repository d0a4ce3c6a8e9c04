"""Settings of the scheduler's core; ``factory`` makes them from the config."""

from dataclasses import dataclass, field

from punica_scheduler.core.advice import ScaleRule
from punica_scheduler.core.consolidation import ConsolidationRule
from punica_scheduler.core.placement import Placement, PunicaPlacement
from punica_serve.prefill_chunks import WHOLE_PROMPTS, PrefillBudget


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """The defaults are the paper's, with no limit of time, no consolidation and no audit."""

    placement: Placement = field(default_factory=PunicaPlacement)
    #: One of ``queues.QUEUES``.
    queue: str = "fcfs"
    #: Whether a preempted request may go on elsewhere.
    migration: bool = True
    max_queue: int = 10_000
    queue_timeout_ns: int = 600 * 10**9
    #: How long a request awaits an adapter that the store did not give, before it is tried a last time.
    store_patience_ns: int = 30 * 10**9
    #: For so long from the start nothing is placed or refused for its size: after a restart all come back in any order.
    settle_ns: int = 0
    #: The shortest times that frontends may promise, in seconds: what an idle GPU needs for the first token after a
    #: prompt of one token, and between two tokens of one request alone. 0: not known.
    least_first_token_s: float = 0.0
    least_time_per_token_s: float = 0.0
    #: By which all GPUs chunk prompts.
    prefill_budget: PrefillBudget = WHOLE_PROMPTS
    consolidation: ConsolidationRule | None = None
    scale: ScaleRule = field(default_factory=ScaleRule)
    #: Check the state after every so manieth event; 0 is never.
    audit_every: int = 0
