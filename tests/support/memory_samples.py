"""Memory of a process: what it has allocated itself (RssAnon), as the kernel counts it. Linux only."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

INTERVAL_S = 0.01

_RSS_ANON = re.compile(rb"^RssAnon:\s+(\d+) kB$", re.MULTILINE)


def anonymous_bytes(pid: int) -> int:
    """Resident memory that belongs to no file: heap and stacks, no code and no mapped weights."""
    found = _RSS_ANON.search(Path(f"/proc/{pid}/status").read_bytes())
    assert found, f"/proc/{pid}/status has no RssAnon"
    return int(found[1]) << 10


class MemorySamples:
    """A process's memory at the start, and the most of all samples since."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.first_bytes = self.peak_bytes = anonymous_bytes(pid)
        self.num_samples = 0
        self._stopped = threading.Event()

    @property
    def growth_bytes(self) -> int:
        """The peak, less what there was at the start."""
        return self.peak_bytes - self.first_bytes

    def _run(self) -> None:
        while not self._stopped.wait(INTERVAL_S):
            self.peak_bytes = max(self.peak_bytes, anonymous_bytes(self.pid))
            self.num_samples += 1


@contextmanager
def sampled_memory(pid: int) -> Iterator[MemorySamples]:
    """Samples the memory of a process every 10 ms while its body runs."""
    samples = MemorySamples(pid)
    thread = threading.Thread(target=samples._run, name=f"memory of {pid}", daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        samples._stopped.set()
        thread.join()
