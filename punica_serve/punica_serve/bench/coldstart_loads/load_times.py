"""What loads took, and what their place allowed at that moment."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadTime:
    """One load, in seconds."""

    wall_s: float
    #: Time of this process's threads.
    processor_s: float
    #: The time that its place allows, as measured just before the load; 0 where that is no time.
    allowed_s: float = 0.0
    #: Bytes per second of its place alone, where that is measured.
    rate: float = 0.0


@dataclass(frozen=True, slots=True)
class PlaceTimes:
    """Medians of one place's loads."""

    wall_s: float
    processor_s: float
    allowed_s: float
    rate: float
    #: Of each load's time over what was allowed to it: others may use the machine more or less from load to load.
    over: float

    @classmethod
    def of(cls, loads: Sequence[LoadTime]) -> "PlaceTimes":
        """The first is left out: it finds memory and code that were not used before."""
        counted = loads[1:]
        return cls(
            statistics.median(load.wall_s for load in counted),
            statistics.median(load.processor_s for load in counted),
            statistics.median(load.allowed_s for load in counted),
            statistics.median(load.rate for load in counted),
            statistics.median(load.wall_s / load.allowed_s if load.allowed_s else 0.0 for load in counted),
        )


class LoadClock:
    """Wall and processor time since it was made."""

    def __init__(self) -> None:
        self._wall_s, self._processor_s = time.perf_counter(), time.process_time()

    def time(self, allowed_s: float = 0.0, rate: float = 0.0) -> LoadTime:
        wall_s, processor_s = time.perf_counter() - self._wall_s, time.process_time() - self._processor_s
        return LoadTime(wall_s, processor_s, allowed_s, rate)
