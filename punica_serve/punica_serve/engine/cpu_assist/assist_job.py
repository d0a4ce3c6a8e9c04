"""One step's exchanges with CPU processes, from its launch to the commit of its tokens."""

from collections.abc import Callable
from dataclasses import dataclass

from punica_serve.engine.adapters.layer_arrival import Arrival
from punica_serve.engine.cpu_assist.exchange_memory import ExchangeMemory, JobWords


@dataclass(slots=True, eq=False)
class AssistJob:
    """The prefill of a step, whose adapter is still arriving, and the processes that help."""

    words: JobWords
    memory: ExchangeMemory
    arrival: Arrival
    num_rows: int
    #: Most seconds that the step may wait for the processes in all.
    max_wait_s: float
    #: Called once, with whether the step has waited in vain.
    on_end: Callable[["AssistJob", bool], None]
    #: A step on a CPU notices by itself that it has waited for too long.
    is_late: bool = False

    @property
    def key(self) -> int:
        return self.words.key

    @property
    def groups(self) -> int:
        """Bits of the groups that are exchanged."""
        return sum(1 << number for number, own in enumerate(self.words.weights) if own.num_pages)

    @property
    def processes(self) -> int:
        """Bits of the processes that compute."""
        return sum(1 << number for number in self.words.rows)

    def end(self) -> bool:
        """The step has ended. False if its prefill is worthless, since it has waited for the processes in vain."""
        is_late = self.is_late or int(self.memory.failed[0]) == self.key
        self.memory.end_job(self.key)
        self.on_end(self, is_late)
        return not is_late
