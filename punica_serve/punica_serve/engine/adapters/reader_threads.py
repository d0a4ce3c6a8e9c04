"""Reads packed files on threads of a worker, where no process does: it is not ready, has died, or can't be had.

Beside a busy step loop they take longer than a process. Chunks are read whole, since each call gives up the GIL and has
to get it back from the step loop.
"""

import socket
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torch import Tensor

from punica_serve.engine.adapters.chunk_job import ChunkJob
from punica_serve.engine.adapters.chunk_reads import ChunkReads
from punica_serve.engine.adapters.disk_watch import DiskWatch, Patience
from punica_serve.engine.adapters.packed_header import PackedName, chunk_ranges


class ReaderThreads:
    """The threads of one worker. Any thread may call it."""

    def __init__(self, num_threads: int, watch: DiskWatch) -> None:
        self._num_threads = num_threads
        self._watch = watch
        self._threads = ThreadPoolExecutor(num_threads, "packed-reader")

    def begin(self, path: Path, name: PackedName, memory: Tensor, numbers: Collection[int] | None = None) -> ChunkReads:
        """Reads an adapter into ``memory``, uint8. ``numbers``: of the chunks that are left; None for all.

        Chunks are left where the disk hangs, or no thread can be had. Raises OSError.
        """
        ours, theirs = socket.socketpair()
        job = ChunkJob(path, name, memory.numpy().data, theirs, numbers=numbers, on_end=theirs.close)
        places = dict(enumerate(chunk_ranges(memory.nbytes)))
        if numbers is not None:
            places = {number: places[number] for number in numbers}
        try:
            self._threads.submit(job.begin, self._threads, self._num_threads)
        except RuntimeError:  # closed, or the system starts no more threads
            job.stop()
        return ChunkReads(ours, places, self._watch, _end_of(job), socket.socket.close)

    def close(self) -> None:
        """Starts nothing more. Loads that wait for their chunks get them."""
        self._threads.shutdown(wait=False)


def _end_of(job: ChunkJob) -> Callable[[Patience], bool]:
    def end(patience: Patience) -> bool:
        """Threads can't be stopped while they read: only a disk that hangs ends a job, after what was begun."""
        if patience.is_over:
            job.stop()
        return patience.is_over

    return end
