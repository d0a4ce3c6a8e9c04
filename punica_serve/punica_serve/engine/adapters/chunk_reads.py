"""A load's view of the threads that read its packed file, in a process of their own or in this one.

All chunks that have come meanwhile are one batch for the load's own thread, which copies them on. If it copies nothing
on, it wakes once, when all have come: each time it would take the GIL from the step loop. A load that gets nothing for
a moment asks whether anything can still come; a disk that is slow is waited for.
"""

import errno
import os
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from struct import pack
from types import TracebackType

from punica_serve.engine.adapters.chunk_job import FAILED, INVALID, OPENED, OPENED_DIRECT, RECORD
from punica_serve.engine.adapters.disk_watch import LOOK_S, DiskWatch, Patience
from punica_serve.engine.adapters.packed_chunk import PackedFileInvalid

#: Is told when the file was opened and found to be the adapter's: whether it is read past the page cache, and the time.
OnOpen = Callable[[bool, float], None]

#: The records of more chunks than an adapter has.
_RECORDS_BYTES = 1 << 16
#: Reads that were told to end do so within that time, unless they wait for a disk.
_END_S = 1.0


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
        self,
        lane: socket.socket,
        places: Mapping[int, range],
        watch: DiskWatch,
        end_silent: Callable[[Patience], bool],
        give_back: Callable[[socket.socket], None],
    ) -> None:
        """``places``: the chunks' in the memory, by their numbers.

        ``end_silent`` ends reads of which nothing comes, if they can't go on or the load's patience is over; it returns
        whether they end. ``give_back`` gets the lane once there is nothing more to come.
        """
        self._lane = lane
        self._left = dict(places)
        self._watch = watch
        self._end_silent = end_silent
        self._give_back = give_back
        self._is_open = self._has_ended = False
        self._error: Exception | None = None

    def __enter__(self) -> "ChunkReads":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for _ in self._batches(lambda *_: None, at_once=True):
            pass
        self._give_back(self._lane)

    @property
    def left(self) -> Collection[int]:
        """Numbers of chunks that were not read, after ``batches``: the reads were ended before."""
        return self._left.keys()

    def batches(self, on_open: OnOpen, *, at_once: bool = False) -> Iterator[list[ChunkRead]]:
        """The chunks, in batches as they come, the last of them at once: without waiting for more.

        ``at_once``: nobody uses some before the others, so they come in one batch, or a few from a slow disk.

        Raises PackedFileInvalid or OSError if the file or a chunk is damaged, or can't be read.
        """
        yield from self._batches(on_open, at_once=at_once)
        if self._error is not None:
            raise self._error

    def _batches(self, on_open: OnOpen, *, at_once: bool) -> Iterator[list[ChunkRead]]:
        """The chunks that come until all have, or a failure, or all threads have ended."""
        patience, is_ending = Patience(self._watch), False
        with ExitStack() as hanging:
            while self._left and not self._has_ended:
                records = self._receive(_END_S if is_ending else LOOK_S, at_once=at_once)
                if records is None and is_ending:
                    hanging.enter_context(self._watch.hanging())
                    records = self._receive(None, at_once=False)
                elif records is None:
                    patience.note_wait()
                    is_ending = self._end_silent(patience)
                if records and (reads := self._take(records, on_open)):
                    yield reads

    def _receive(self, timeout_s: float | None, *, at_once: bool) -> bytes | None:
        """Records, none at the end; None after the timeout. One call of the system, which gives the GIL up once.

        ``at_once``: waits for those of all chunks. After a failure none comes, so it takes all of the timeout.
        """
        num_left = len(self._left) + (not self._is_open)
        num_bytes, flags = (RECORD.size * num_left, socket.MSG_WAITALL) if at_once else (_RECORDS_BYTES, 0)
        timeout_us = 0 if timeout_s is None else int(1e6 * timeout_s) + 1  # 0: none
        self._lane.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, pack("ll", *divmod(timeout_us, 1_000_000)))
        try:
            records = self._lane.recv(num_bytes, flags)
        except BlockingIOError:
            return None
        self._has_ended = not records
        return records

    def _take(self, records: bytes, on_open: OnOpen) -> list[ChunkRead]:
        reads = []
        for number, error, begun_s, read_s, checked_s in RECORD.iter_unpack(records):
            if number == FAILED:
                self._error, self._has_ended = _error_of(error), True
            elif number in (OPENED, OPENED_DIRECT):
                self._is_open = True
                on_open(number == OPENED_DIRECT, begun_s)
            else:
                self._watch.newest_chunk_s = checked_s
                reads.append(ChunkRead(self._left.pop(number), begun_s, read_s, checked_s))
        return reads


def _error_of(number: int) -> Exception:
    if number == INVALID:
        return PackedFileInvalid("it is damaged, cut short, or of another adapter or layout")
    if number == errno.EPERM:  # `open_own_file` has refused it
        return PermissionError(number, "others may have written it, or it is not a file, so it is not trusted")
    return OSError(number, os.strerror(number))
