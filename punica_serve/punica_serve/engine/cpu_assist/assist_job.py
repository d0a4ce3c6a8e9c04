"""One step's exchanges with CPU processes, from its launch to the commit of its tokens."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from punica_serve.engine.adapters.layer_arrival import Arrival
from punica_serve.engine.cpu_assist.exchange_memory import ExchangeMemory, JobWords

#: Their steps end with this rank's, and they answer within a millisecond. The step loop does not wait for a slower one.
_PEERS_TIMEOUT_S = 0.05


@dataclass(frozen=True, slots=True)
class WaitLimits:
    """Most seconds that a step may wait for its processes."""

    in_all_s: float
    for_one_s: float

    @classmethod
    def both(cls, seconds: float) -> "WaitLimits":
        """One exchange may take as long as all."""
        return cls(seconds, seconds)


@dataclass(slots=True, eq=False)
class AssistJob:
    """The prefill of a step, whose adapter is still arriving, and the processes that help."""

    words: JobWords
    memory: ExchangeMemory
    arrival: Arrival
    limits: WaitLimits
    #: Called once, with whether the step has waited in vain.
    on_end: Callable[["AssistJob", bool], None]
    #: A step on a CPU notices by itself that it has waited for too long.
    is_late: bool = False
    #: Ends after the step on the other ranks of a group, with an error if one of them has waited in vain.
    peers: "Future[Any] | None" = None

    @property
    def key(self) -> int:
        return self.words.key

    @property
    def num_rows(self) -> int:
        return self.words.num_rows

    @property
    def groups(self) -> int:
        """Bits of the groups that are exchanged."""
        return sum(1 << number for number, own in enumerate(self.words.weights) if own.num_pages)

    @property
    def processes(self) -> int:
        """Bits of the processes that compute."""
        return self.words.process_bits

    def end(self) -> bool:
        """The step has ended. False if its prefill is worthless, since a rank has waited for its processes in vain."""
        is_late = self.is_late or int(self.memory.failed[0]) == self.key
        self.memory.end_job(self.key)
        self.on_end(self, is_late)
        return not is_late and self._have_peers_had_help()

    def _have_peers_had_help(self) -> bool:
        """False, too, if they don't say so soon: then the prefill is computed again for nothing."""
        if self.peers is None:
            return True
        try:
            return self.peers.exception(_PEERS_TIMEOUT_S) is None
        except TimeoutError:
            return False
