"""Times of loads, and the times that their place allowed at that moment."""

import os
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from punica_serve.bench.process_figures import ProcessFigures


@dataclass(frozen=True, slots=True)
class LoadTime:
    """One load, in seconds."""

    wall_s: float
    #: Time of the threads of this process, and of the one that reads or downloads for it.
    processor_s: float
    #: The same of the thread that needed most: no number of cores makes the load faster.
    busiest_s: float
    #: How long that thread was ready to run and had no core: other work on the machine, not a wait of the load's own.
    queued_s: float
    #: The time that its place allows, as measured just before the load; 0 where that is no time.
    allowed_s: float = 0.0
    #: Bytes per second of its place alone, where that is measured.
    rate: float = 0.0


@dataclass(frozen=True, slots=True)
class PlaceTimes:
    """Medians of one place's loads."""

    wall_s: float
    processor_s: float
    busiest_s: float
    queued_s: float
    allowed_s: float
    rate: float
    #: Median of each load's time over its allowance, since other work on the machine changes from load to load.
    over: float

    @classmethod
    def of(cls, loads: Sequence[LoadTime]) -> "PlaceTimes":
        """The first is left out: it finds memory and code that were not used before."""
        counted = loads[1:]
        return cls(
            statistics.median(load.wall_s for load in counted),
            statistics.median(load.processor_s for load in counted),
            statistics.median(load.busiest_s for load in counted),
            statistics.median(load.queued_s for load in counted),
            statistics.median(load.allowed_s for load in counted),
            statistics.median(load.rate for load in counted),
            statistics.median(load.wall_s / load.allowed_s if load.allowed_s else 0.0 for load in counted),
        )


class LoadClock:
    """Wall and processor time since it was made."""

    def __init__(self, helper: int | None = None) -> None:
        """``helper``: the number of a process whose time is the load's too."""
        self._processes = [os.getpid()] if helper is None else [os.getpid(), helper]
        self._threads = _thread_times(self._processes)
        self._wall_s, self._processor_s = time.perf_counter(), _processor_s(self._processes)

    def time(self, allowed_s: float = 0.0, rate: float = 0.0) -> LoadTime:
        wall_s, processor_s = time.perf_counter() - self._wall_s, _processor_s(self._processes) - self._processor_s
        ends = _thread_times(self._processes)
        spent = [end.since(self._threads.get(thread, _NOTHING)) for thread, end in ends.items()]
        busiest = max(spent, key=lambda times: times.core_s, default=_NOTHING)
        return LoadTime(wall_s, processor_s, busiest.core_s, busiest.queued_s, allowed_s, rate)


@dataclass(frozen=True, slots=True)
class _ThreadTimes:
    """Seconds of a thread on a core, and ready for one."""

    core_s: float = 0.0
    queued_s: float = 0.0

    def since(self, start: "_ThreadTimes") -> "_ThreadTimes":
        return _ThreadTimes(self.core_s - start.core_s, self.queued_s - start.queued_s)


_NOTHING = _ThreadTimes()


def _processor_s(processes: Sequence[int]) -> float:
    return sum(ProcessFigures(process).cpu_s for process in processes)


def _thread_times(processes: Sequence[int]) -> dict[str, _ThreadTimes]:
    """Times of each thread of these processes that is alive; none where the system does not tell."""
    times: dict[str, _ThreadTimes] = {}
    for process in processes:
        tasks = Path(f"/proc/{process}/task")
        with suppress(OSError):
            for thread in os.listdir(tasks):
                with suppress(OSError):  # it has ended
                    core_ns, queued_ns, _ = (tasks / thread / "schedstat").read_text().split()
                    times[thread] = _ThreadTimes(int(core_ns) / 1e9, int(queued_ns) / 1e9)
    return times
