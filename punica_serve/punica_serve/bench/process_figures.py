"""The kernel's statistics of a process."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

#: `man 3 clock_getcpuclockid`: the clock of a process counts its threads' time on cores.
_CPUCLOCK_SCHED = 2


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """Those of a running process. Others than this one are there on Linux alone."""

    pid: int

    @property
    def cpu_s(self) -> float:
        """The time so far of all threads that it has had, user and system, to the nanosecond.

        `/proc/PID/stat` counts ticks of 10 ms, of which a process that works a little at a time may get none.
        """
        if self.pid == os.getpid():
            return time.process_time()
        return time.clock_gettime((~self.pid << 3) | _CPUCLOCK_SCHED)

    @property
    def resident_bytes(self) -> int:
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
