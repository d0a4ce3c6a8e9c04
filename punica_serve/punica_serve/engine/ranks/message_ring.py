"""Frames from one writer to several readers through a ring in shared memory: a copy for each, and no system call.

The memory is a file without a name, so nothing is left behind when the processes are killed. Positions count bytes and
never wrap. The writer publishes a frame by advancing its position; a reader frees it by advancing its own. A frame is
its length, a checksum over its bytes and its position, and the bytes: so a reader on a machine that reorders stores
sees that a frame has not arrived whole, and looks again.
"""

import mmap
import os
import struct
import time
import zlib

_WORD_BYTES = 8
#: Each process has a cache line of its own, for its position and the time of its newest launch.
_LINE_WORDS = 8
#: Length and checksum.
_HEADER = struct.Struct("<II")
#: The pause of a writer that waits for room.
_PAUSE_S = 50e-6
#: A frame that has not arrived whole for so long never will.
_TORN_S = 1.0


class RingStuck(Exception):
    """A reader has not read for too long, or frames are damaged."""


def make_ring(capacity: int, num_readers: int) -> int:
    """The file descriptor of a new ring, which processes inherit. ``capacity``: bytes of all unread frames."""
    fd = os.memfd_create("punica-ring")
    os.ftruncate(fd, _LINE_WORDS * _WORD_BYTES * (1 + num_readers) + capacity)
    return fd


class _Ring:
    def __init__(self, fd: int, num_readers: int) -> None:
        self._first = _LINE_WORDS * _WORD_BYTES * (1 + num_readers)
        self._memory = mmap.mmap(fd, 0)
        self._capacity = len(self._memory) - self._first
        words = memoryview(self._memory)[: self._first].cast("Q")
        #: The writer's, then each reader's. A word is loaded and stored at once.
        self._positions = words[::_LINE_WORDS]
        #: When each reader launched its newest step; the writer's is not used.
        self._launches = words[1::_LINE_WORDS]

    def _put(self, position: int, data: bytes) -> None:
        start = position % self._capacity
        num_rest = start + len(data) - self._capacity
        place = self._first + start
        if num_rest <= 0:
            self._memory[place : place + len(data)] = data
            return
        self._memory[place:] = data[:-num_rest]
        self._memory[self._first : self._first + num_rest] = data[-num_rest:]

    def _get(self, position: int, count: int) -> bytes:
        start = position % self._capacity
        num_rest = start + count - self._capacity
        place = self._first + start
        if num_rest <= 0:
            return self._memory[place : place + count]
        return self._memory[place:] + self._memory[self._first : self._first + num_rest]


class RingWriter(_Ring):
    """The writer's end. One thread at a time may write."""

    def write(self, payload: bytes, timeout_s: float) -> None:
        """Raises RingStuck if the slowest reader has not made room by then, ValueError for more than the ring holds."""
        num_bytes = _frame_bytes(len(payload))
        if num_bytes > self._capacity:
            raise ValueError(f"a frame of {len(payload)} bytes exceeds the ring's {self._capacity}")
        start = self._positions[0]
        self._await_room(start + num_bytes - self._capacity, timeout_s)
        self._put(start, _HEADER.pack(len(payload), _checksum(payload, start)) + payload)
        self._positions[0] = start + num_bytes

    def slowest(self) -> int:
        """The reader that has read least."""
        positions = self._positions[1:].tolist()
        return positions.index(min(positions))

    def launched_ns(self, reader: int) -> int:
        """The newest time that a reader has told by ``tell_launch``; 0 before the first."""
        return int(self._launches[1 + reader])

    def _await_room(self, oldest: int, timeout_s: float) -> None:
        """Waits until all readers have read up to ``oldest``."""
        if min(self._positions[1:]) >= oldest:
            return
        deadline_s = time.monotonic() + timeout_s
        while min(self._positions[1:]) < oldest:
            if time.monotonic() > deadline_s:
                raise RingStuck(f"reader {self.slowest()} has read nothing for {timeout_s:g} s")
            time.sleep(_PAUSE_S)


class RingReader(_Ring):
    """One reader's end."""

    def __init__(self, fd: int, num_readers: int, index: int) -> None:
        super().__init__(fd, num_readers)
        self._own = 1 + index

    def read(self) -> bytes | None:
        """The next frame; None if there is none. Raises RingStuck for a damaged one."""
        positions = self._positions
        start = positions[self._own]
        if start == positions[0]:
            return None
        payload = self._whole_frame(start)
        if payload is None:
            payload = self._await_whole_frame(start)
        positions[self._own] = start + _frame_bytes(len(payload))
        return payload

    def tell_launch(self, launched_ns: int) -> None:
        """Tells the writer when this reader launched its newest step, on the host's monotonic clock."""
        self._launches[self._own] = launched_ns

    def _await_whole_frame(self, start: int) -> bytes:
        deadline_s = time.monotonic() + _TORN_S
        while (payload := self._whole_frame(start)) is None:
            if time.monotonic() > deadline_s:
                raise RingStuck(f"the frame at {start} is damaged")
        return payload

    def _whole_frame(self, start: int) -> bytes | None:
        length, checksum = _HEADER.unpack(self._get(start, _HEADER.size))
        if _frame_bytes(length) > self._capacity:
            return None
        payload = self._get(start + _HEADER.size, length)
        return payload if _checksum(payload, start) == checksum else None


def _frame_bytes(length: int) -> int:
    """Frames start at whole words."""
    return _HEADER.size + -(-length // _WORD_BYTES) * _WORD_BYTES


def _checksum(payload: bytes, start: int) -> int:
    return zlib.crc32(payload, start & 0xFFFFFFFF)
