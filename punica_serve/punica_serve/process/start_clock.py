"""Tells where the seconds of a start go, and how far a long one is."""

import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

log = logging.getLogger(__name__)

#: Seconds from one word about a long start to the next.
_SAY_EVERY_S = 10.0
#: Shorter phases are told as part of the rest.
_SHOWN_S = 0.05
_OWN_STAT = Path("/proc/self/stat")
#: Where the file tells the start of the process, in clock ticks, after the name of its command.
_START_FIELD = 19

_P = ParamSpec("_P")
_T = TypeVar("_T")

#: Called with how much of a phase is done, in equal parts, and all of it.
Progress = Callable[[int, int], None]
#: Called with a rank and the phase of its start that it begins.
OnPhase = Callable[[int, str], None]


def no_progress(done: int, total: int) -> None:
    """Tells nobody."""


def no_phases(rank: int, name: str) -> None:
    """Tells nobody."""


class StartClock:
    """The phases of one process's start, of which one runs at a time. One thread calls all methods but one."""

    def __init__(
        self,
        age_s: float = 0.0,
        say: Callable[[str], None] = log.info,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``age_s``: how long the start has taken so far. ``say`` is called every ten seconds, with how far it is."""
        self._now_s = now_s
        self._started_s = self._now_s() - age_s
        self._say = say
        self._said_s = self._now_s()
        self._phase = ""
        self._waited_s = 0.0
        #: Told each phase as it begins, as rank 0's.
        self.on_phase: OnPhase = no_phases
        #: Seconds by name, in order.
        self.phases: dict[str, float] = {}
        #: Phases that all ranks of a group end at the same time, since they wait for each other within.
        self.together: set[str] = set()

    @property
    def total_s(self) -> float:
        """Seconds since the start began."""
        return self._now_s() - self._started_s

    def spent(self, phase: str, seconds: float) -> None:
        """Adds to a phase, which may have ended before."""
        self.phases[phase] = self.phases.get(phase, 0.0) + seconds

    @contextmanager
    def phase(self, name: str, *, together: bool = False) -> Iterator[None]:
        """Around a phase; not within another. ``together``: the ranks of a group end it at the same time."""
        began_s, waited_s = self._now_s(), self._waited_s
        self._phase = name
        if together:
            self.together.add(name)
        self.on_phase(0, name)
        self.at()
        try:
            yield
        finally:
            self.spent(name, self._now_s() - began_s - (self._waited_s - waited_s))

    def other_began(self, rank: int, name: str) -> None:
        """Another rank of the group has begun a phase. On any thread."""
        self.on_phase(rank, name)

    def as_wait(self, ask: Callable[_P, _T]) -> Callable[_P, _T]:
        """``ask``, which waits for other ranks. Its time counts as none of the phase's."""

        def timed(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            began_s = self._now_s()
            try:
                return ask(*args, **kwargs)
            finally:
                self._waited_s += self._now_s() - began_s

        return timed

    def at(self, done: int = 0, total: int = 0) -> None:
        """Says how far the phase is, in equal parts, if nothing was said for long."""
        now_s = self._now_s()
        if now_s - self._said_s < _SAY_EVERY_S:
            return
        self._said_s = now_s
        place = f", {done} of {total}" if total else ""
        self._say(f"starting for {self.total_s:.0f} s: {self._phase}{place}")


@dataclass(frozen=True, slots=True)
class StartTimes:
    """Seconds of a start. In a group each phase is that of the rank which took longest for it.

    Ranks wait for each other in phases that they end together. Such a phase is that of the rank which came last.
    """

    total_s: float
    #: By name, in the order of the leader: seconds, and the rank.
    phases: Mapping[str, tuple[float, int]]
    #: Seconds of each phase, by rank.
    by_rank: Sequence[Mapping[str, float]]

    @classmethod
    def of(cls, clock: StartClock, others: Sequence[Mapping[str, float]] = ()) -> "StartTimes":
        """``clock``: the leader's. ``others``: the phases of the other ranks, in order."""
        by_rank = (clock.phases, *others)
        names = dict.fromkeys(name for phases in by_rank for name in phases)
        return cls(clock.total_s, {name: _decisive(name, by_rank, clock.together) for name in names}, by_rank)

    def __str__(self) -> str:
        shown = {name: taken for name, taken in self.phases.items() if taken[0] >= _SHOWN_S}
        words = [f"{name} {seconds:.1f}{f' (rank {rank})' if rank else ''}" for name, (seconds, rank) in shown.items()]
        rest = self.total_s - sum(seconds for seconds, _ in shown.values())
        if rest >= _SHOWN_S:
            words.append(f"rest {rest:.1f}")
        return f"{self.total_s:.1f} s" + (f" ({', '.join(words)})" if words else "")


def process_age_s() -> float:
    """Seconds since this process was started; zero on systems that don't tell."""
    with suppress(OSError, ValueError, IndexError, AttributeError):
        fields = _OWN_STAT.read_text().rpartition(")")[2].split()
        started_s = int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)
    return 0.0


def _decisive(name: str, by_rank: Sequence[Mapping[str, float]], together: Collection[str]) -> tuple[float, int]:
    """How long a phase took the rank that the others waited for, and that rank."""
    seconds = [phases.get(name, 0.0) for phases in by_rank]
    decisive = min(seconds) if name in together else max(seconds)
    return decisive, seconds.index(decisive)
