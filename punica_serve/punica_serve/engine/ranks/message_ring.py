"""Frames from one writer to several readers through a ring in shared memory: a copy for each, and no system call.

The memory is a file without a name, so nothing is left behind when the processes are killed. Positions count bytes and
never wrap. The writer publishes a frame by advancing its position; a reader frees it by advancing its own. A frame is
its length, a checksum over its bytes and its position, and the bytes: so a reader on a machine that reorders stores
sees that a frame has not arrived whole, and looks again.
"""

import mmap
import os
import time
import zlib

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

_WORD_BYTES = 8
#: Each position has a cache line of its own.
_LINE_WORDS = 8
#: Length and checksum.
_HEADER = np.dtype([("length", "<u4"), ("checksum", "<u4")])
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
        positions_bytes = _LINE_WORDS * _WORD_BYTES * (1 + num_readers)
        memory = mmap.mmap(fd, 0)
        self._positions = np.frombuffer(memory, dtype=np.uint64, count=positions_bytes // _WORD_BYTES)[::_LINE_WORDS]
        self._bytes = np.frombuffer(memory, dtype=np.uint8, offset=positions_bytes)

    def _put(self, position: int, data: Bytes) -> None:
        start = position % len(self._bytes)
        first = min(len(data), len(self._bytes) - start)
        self._bytes[start : start + first] = data[:first]
        self._bytes[: len(data) - first] = data[first:]

    def _get(self, position: int, count: int) -> Bytes:
        start = position % len(self._bytes)
        first = min(count, len(self._bytes) - start)
        return np.concatenate([self._bytes[start : start + first], self._bytes[: count - first]])


class RingWriter(_Ring):
    """The writer's end. One thread at a time may write."""

    def write(self, payload: bytes, timeout_s: float) -> None:
        """Raises RingStuck if the slowest reader has not made room by then, ValueError for more than the ring holds."""
        num_bytes = _frame_bytes(len(payload))
        if num_bytes > len(self._bytes):
            raise ValueError(f"a frame of {len(payload)} bytes exceeds the ring's {len(self._bytes)}")
        start = int(self._positions[0])
        self._await_room(start + num_bytes - len(self._bytes), timeout_s)
        header = np.array([(len(payload), _checksum(payload, start))], dtype=_HEADER)
        self._put(start, header.view(np.uint8))
        self._put(start + _HEADER.itemsize, np.frombuffer(payload, dtype=np.uint8))
        self._positions[0] = start + num_bytes

    def slowest(self) -> int:
        """The reader that has read least."""
        return int(self._positions[1:].argmin())

    def _await_room(self, oldest: int, timeout_s: float) -> None:
        """Waits until all readers have read up to ``oldest``."""
        if int(self._positions[1:].min()) >= oldest:
            return
        deadline_s = time.monotonic() + timeout_s
        while int(self._positions[1:].min()) < oldest:
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
        start = int(self._positions[self._own])
        if start == int(self._positions[0]):
            return None
        deadline_s = time.monotonic() + _TORN_S
        while (payload := self._whole_frame(start)) is None:
            if time.monotonic() > deadline_s:
                raise RingStuck(f"the frame at {start} is damaged")
        self._positions[self._own] = start + _frame_bytes(len(payload))
        return payload

    def _whole_frame(self, start: int) -> bytes | None:
        header = self._get(start, _HEADER.itemsize).view(_HEADER)[0]
        length = int(header["length"])
        if _frame_bytes(length) > len(self._bytes):
            return None
        payload = self._get(start + _HEADER.itemsize, length).tobytes()
        return payload if _checksum(payload, start) == int(header["checksum"]) else None


def _frame_bytes(length: int) -> int:
    """Frames start at whole words."""
    return _HEADER.itemsize + -(-length // _WORD_BYTES) * _WORD_BYTES


def _checksum(payload: bytes, start: int) -> int:
    return zlib.crc32(payload, start & 0xFFFFFFFF)
