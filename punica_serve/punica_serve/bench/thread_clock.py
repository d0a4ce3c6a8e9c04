"""Processor time of one thread, and the time that it was ready to run and had no core."""

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

#: Linux: nanoseconds on a core, nanoseconds ready without one, time slices; of the thread that reads it.
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


@dataclass(frozen=True, slots=True)
class ThreadLap:
    """Seconds of a thread. The rest of the time it slept: for a device, a lock or the GIL."""

    core_s: float
    #: 0 where the system does not tell.
    no_core_s: float


class ThreadClock:
    """For the thread that uses it."""

    def __init__(self) -> None:
        self._core_s, self._no_core_s = _now()

    def lap(self) -> ThreadLap:
        """The times since the last call."""
        core_s, no_core_s = _now()
        lap = ThreadLap(core_s - self._core_s, no_core_s - self._no_core_s)
        self._core_s, self._no_core_s = core_s, no_core_s
        return lap


def _now() -> tuple[float, float]:
    no_core_s = 0.0
    with suppress(OSError, ValueError, IndexError):
        no_core_s = int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    return time.thread_time(), no_core_s
