"""Reads the chunks of a packed file on threads: each reads and checks one after the other until none is left.

All chunks that have come meanwhile are one batch for the load's own thread, which copies them on. So reading and
checking are the only calls for which a thread gives up the GIL and has to get it back from the step loop.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import TracebackType

from punica_serve.engine.adapters.disk_watch import LOOK_S, DiskWatch, Patience
from punica_serve.engine.adapters.packed_chunk import Chunk, read_checked
from punica_serve.engine.adapters.range_reader import RangeReader

#: Is told when the file was opened and found to be the adapter's: whether it is read past the page cache, and the time.
OnOpen = Callable[[bool, float], None]


class DiskHangs(Exception):
    """Chunks were not begun, because others are not read to their ends."""


@dataclass(frozen=True, slots=True)
class ChunkRead:
    """A chunk that lies in its place, verified: times of ``time.perf_counter``, in seconds."""

    #: In the adapter's memory.
    place: range
    #: A thread begins to read it.
    begun_s: float
    #: Or would have been read then, if no piece of it had been checked between.
    read_s: float
    checked_s: float


class ChunkReads:
    """The reads of one adapter. Within ``with`` threads write to its memory, and when that ends no more."""

    def __init__(
        self, file: RangeReader, chunks: Sequence[Chunk], threads: ThreadPoolExecutor, most: int, watch: DiskWatch
    ) -> None:
        """``most``: of the ``threads``, for this adapter."""
        self._file = file
        self._waiting = deque(chunks)
        self._threads = threads
        self._most = min(most, len(chunks))
        self._watch = watch
        self._jobs: list[Future[None]] = []
        #: What the jobs have read; None when one of them has ended.
        self._done: SimpleQueue[ChunkRead | None] = SimpleQueue()
        self._num_running = 0
        self._num_left = len(chunks)

    def __enter__(self) -> "ChunkReads":
        try:
            for _ in range(self._most):
                self._jobs.append(self._threads.submit(self._run))
                self._num_running += 1
        except RuntimeError:  # closed
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def batches(self) -> Iterator[list[ChunkRead]]:
        """All chunks, in batches as they come. Raises PackedFileInvalid or OSError if one can't be read or is damaged,
        and DiskHangs, once nothing is read any more.
        """
        yield from self._batches()
        for job in self._jobs:
            if not job.cancelled():
                job.result()
        if self._num_left:
            raise DiskHangs

    def _batches(self) -> Iterator[list[ChunkRead]]:
        """The chunks that come until all jobs have ended. If the disk hangs, those that were begun are waited for."""
        patience, is_hanging = Patience(self._watch), False
        with ExitStack() as hanging:
            while self._num_running:
                batch = self._take(None if is_hanging else LOOK_S)
                if batch is None and patience.is_over():
                    is_hanging = True
                    hanging.enter_context(self._watch.hanging())
                    self._stop()
                if batch:
                    yield batch

    def _take(self, timeout_s: float | None) -> list[ChunkRead] | None:
        """All that has come, and waits for the first. Empty if jobs have ended alone; None after the timeout."""
        try:
            done = [self._done.get(timeout=timeout_s)]
        except Empty:
            return None
        while not self._done.empty():  # no other thread takes from it
            done.append(self._done.get())
        batch = [read for read in done if read is not None]
        self._num_running -= len(done) - len(batch)
        self._num_left -= len(batch)
        return batch

    def _run(self) -> None:
        """Reads chunks until none is left, beside other threads. None of them begins another after an error."""
        try:
            while (chunk := _next(self._waiting)) is not None:
                begun_s = time.perf_counter()
                read_s = begun_s + read_checked(self._file, chunk)
                self._watch.newest_chunk_s = checked_s = time.perf_counter()
                self._done.put(ChunkRead(chunk.place, begun_s, read_s, checked_s))
        except BaseException:
            self._waiting.clear()
            raise
        finally:
            self._done.put(None)

    def _stop(self) -> None:
        """No chunk is begun any more."""
        self._waiting.clear()
        self._num_running -= sum(job.cancel() for job in self._jobs if not job.cancelled())

    def _end(self) -> None:
        """Waits for the chunks that were begun."""
        self._stop()
        for _ in self._batches():
            pass


def _next(chunks: deque[Chunk]) -> Chunk | None:
    try:
        return chunks.popleft()
    except IndexError:
        return None
