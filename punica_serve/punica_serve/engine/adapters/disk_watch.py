"""Notices when the disk of packed adapters hangs: no chunk of any adapter has come for a while."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

log = logging.getLogger(__name__)

#: A load waits so long for a chunk before it looks whether one can still come: some steps, less than anybody notices.
LOOK_S = 0.05
#: A disk that gives no chunk of any adapter for so long hangs: adapters are read from their folders meanwhile.
_HANG_S = 10.0
#: Readers of which nothing comes for so long hang, unless they wait for the disk or have work and no core.
_IDLE_S = 1.0


class DiskWatch:
    """Shared by all loads of a worker."""

    def __init__(self) -> None:
        #: When a chunk came last, by ``time.perf_counter`` in seconds.
        self.newest_chunk_s = 0.0
        #: Adapters whose chunks are not read to their ends.
        self._num_hanging = 0
        self._lock = Lock()

    @property
    def answers(self) -> bool:
        """Whether no load waits for a disk that hangs."""
        return not self._num_hanging

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


class Patience:
    """One load's. It counts waits in vain instead of reading a clock: who was stopped itself blames no disk."""

    def __init__(self, watch: DiskWatch) -> None:
        self._watch = watch
        self._newest_chunk_s = watch.newest_chunk_s
        self._waited_s = 0.0

    def note_wait(self) -> None:
        """The load has got nothing for another ``LOOK_S``."""
        if self._newest_chunk_s != self._watch.newest_chunk_s:
            self._newest_chunk_s, self._waited_s = self._watch.newest_chunk_s, 0.0
        self._waited_s += LOOK_S

    @property
    def is_over(self) -> bool:
        """Whether the disk hangs."""
        return self._waited_s >= _HANG_S

    @property
    def is_over_for_idle(self) -> bool:
        """Whether readers hang that don't wait for the disk."""
        return self._waited_s >= _IDLE_S
