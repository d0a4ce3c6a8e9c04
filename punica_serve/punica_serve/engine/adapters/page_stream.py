"""An adapter's way from its packed file to pages of the device, chunk by chunk.

Chunks are copied as soon as they were read and verified, while the next ones are read: so a load takes as long as its
reading, and the copies of the last chunks more. No step uses the pages before all chunks are verified and their copies
queued: a chunk may still turn out to be damaged, and a step can't wait for a disk.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock

import torch
from torch import Tensor

from punica_serve.engine.adapters.chunk_reads import ChunkRead
from punica_serve.engine.adapters.copy_batch import CopyBatch
from punica_serve.engine.adapters.layer_arrival import Arrival
from punica_serve.engine.adapters.load_trace import ChunkTimes, LoadTrace
from punica_serve.engine.adapters.lora_pool import AdapterPages, LoraPool
from punica_serve.engine.adapters.packing import PackedAdapter


@dataclass(frozen=True, slots=True)
class _ChunkCopy:
    """Chunks beside each other that were copied, or queued on a GPU."""

    num_bytes: int
    #: Time of the call that has copied it; on a GPU it only queues.
    call_s: float
    end: torch.cuda.Event | None

    @property
    def has_ended(self) -> bool:
        return self.end is None or self.end.query()

    def seconds_after(self, last: "_ChunkCopy") -> float:
        """An upper bound of the copy's time: the GPU copies one after the other."""
        if self.end is None or last.end is None:
            return self.call_s
        return float(last.end.elapsed_time(self.end)) / 1e3


class PageStream:
    """Fills the pages of one adapter while it is read into host memory."""

    def __init__(
        self,
        pool: LoraPool,
        pages: AdapterPages,
        fences: tuple[torch.cuda.Event, ...],
        arrival: Arrival | None,
        on_progress: Callable[[], None],
        trace: LoadTrace,
    ) -> None:
        """``fences``: the device writes nothing before them. ``arrival``: for steps that wait for the last copies.

        ``on_progress`` is called on some thread by ``stop``. ``trace`` is written by the thread that reads the adapter.
        """
        self.pages = pages
        self.fences = fences
        self.arrival = arrival
        self.trace = trace
        self._on_progress = on_progress
        self._pool = pool
        #: The end of the copies on a GPU.
        self._end: torch.cuda.Event | None = None
        self._batch: CopyBatch | None = None
        self._address = 0
        self._is_flowing = False
        self._is_complete = False
        #: Held while chunks are queued, since the pages may be abandoned meanwhile.
        self._lock = Lock()
        self._is_abandoned = False
        #: In the order in which they were queued. The first is of no bytes: the others follow it.
        self._copies: list[_ChunkCopy] = []
        #: Those of them that have ended, as far as ``bytes_to_come`` knows.
        self._num_ended = 0

    @property
    def is_flowing(self) -> bool:
        """Whether chunks come, or may come at once, or have all come."""
        return self._is_flowing

    @property
    def is_complete(self) -> bool:
        """Whether all chunks were verified, and their copies are queued."""
        return self._is_complete

    def begin(self) -> None:
        """The adapter's packed file is looked for."""
        self._is_flowing = True

    def stop(self) -> None:
        """The adapter has no good packed file: it is read another way, which takes long."""
        self._is_flowing = False
        self._on_progress()

    def abandon(self) -> None:
        """The pages are for something else from now on: the rest of the adapter is read, but not copied to them."""
        with self._lock:
            self._is_abandoned = True

    @contextmanager
    def filling(self, memory: Tensor) -> Iterator[None]:
        """Within, ``prepare`` is called once, then ``put`` until it has had each chunk of ``memory``, uint8.

        After an error, or if the pages were abandoned, it waits for the copies: the memory is free for something else
        then.
        """
        self._address = memory.data_ptr()
        try:
            yield
            self._complete()
        except BaseException:
            self._pool.synchronize()
            raise

    def _complete(self) -> None:
        with self._lock:
            if not self._is_abandoned:
                self._end = self._pool.end_parts(self.arrival)
                self._is_complete = True
                return
        self._pool.synchronize()

    def wait(self) -> None:
        """Waits until the copies of a complete stream have ended."""
        if self._end is not None:
            self._end.synchronize()

    def bytes_to_come(self) -> int:
        """Bytes of a complete stream whose copies have not ended. Never waits."""
        while self._num_ended < len(self._copies) and self._copies[self._num_ended].has_ended:
            self._num_ended += 1
        return sum(copy.num_bytes for copy in self._copies[self._num_ended :])

    def fastest_copy(self) -> tuple[int, float]:
        """Bytes and seconds of the chunks that were copied fastest, once ``wait`` has returned: what the link can do.

        Chunks that were read too late left it idle.
        """
        times = ((copy.num_bytes, copy.seconds_after(last)) for last, copy in pairwise(self._copies))
        return max(times, key=lambda time: time[0] / max(time[1], 1e-9), default=(0, 0.0))

    def prepare(self, views: Callable[[], PackedAdapter]) -> PackedAdapter:
        """The adapter's pages in the memory, made by ``views`` while chunks are read."""
        packed = views()
        self._batch = self._pool.begin_parts(self.pages, packed, self.fences)
        return packed

    def put(self, reads: Sequence[ChunkRead]) -> None:
        """Copies chunks of the memory. Raises CancelledError when the pool is closed."""
        for start, stop in _stretches(reads):
            self._put(start, stop)
        queued_s = time.perf_counter()
        for read in reads:
            times = ChunkTimes(len(read.place), read.begun_s, read.read_s, read.checked_s, queued_s)
            self.trace.chunks.append(times)

    def _put(self, start: int, stop: int) -> None:
        """Copies the bytes [start, stop) of the memory."""
        assert self._batch is not None, "it was prepared"
        with self._lock:
            if not self._is_abandoned:
                if not self._copies:
                    self._copies.append(_ChunkCopy(0, 0.0, self._pool.mark_time()))
                started_s = time.perf_counter()
                end = self._pool.write_part(self._batch, self._address + start, self._address + stop)
                self._copies.append(_ChunkCopy(stop - start, time.perf_counter() - started_s, end))


def _stretches(reads: Sequence[ChunkRead]) -> list[tuple[int, int]]:
    """Where chunks lie, in the order of the memory; those beside each other are one copy."""
    stretches: list[tuple[int, int]] = []
    for place in sorted((read.place for read in reads), key=lambda place: place.start):
        if stretches and stretches[-1][1] == place.start:
            stretches[-1] = (stretches[-1][0], place.stop)
        else:
            stretches.append((place.start, place.stop))
    return stretches
