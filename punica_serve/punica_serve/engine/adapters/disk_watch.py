"""Notices when the disk of packed adapters hangs: no chunk of any adapter has come for a while."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

log = logging.getLogger(__name__)

#: A disk that gives no chunk of any adapter for so long hangs: adapters are read from their folders meanwhile.
_HANG_S = 10.0


class DiskWatch:
    """Shared by all loads of a worker. Times are of ``time.perf_counter``, in seconds."""

    def __init__(self) -> None:
        #: When the newest chunk came.
        self.newest_chunk_s = 0.0
        #: Adapters whose chunks are not read to their ends.
        self._num_hanging = 0
        self._lock = Lock()

    @property
    def answers(self) -> bool:
        """Whether no load waits for a disk that hangs."""
        return not self._num_hanging

    def patience_s(self, since_s: float) -> float:
        """How long a load that has waited ``since_s`` waits for the next chunk; not above 0 if the disk hangs."""
        return max(since_s, self.newest_chunk_s) + _HANG_S - time.perf_counter()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Within, a load waits for reads that do not end."""
        with self._lock:
            self._num_hanging += 1
        log.warning("the disk of packed adapters does not answer: adapters are read from their folders until it does")
        try:
            yield
        finally:
            with self._lock:
                self._num_hanging -= 1
