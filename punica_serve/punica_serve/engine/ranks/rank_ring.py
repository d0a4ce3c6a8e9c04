"""The ring by which a process commands the ranks of its host, with a bell for each reader."""

import os
from dataclasses import dataclass

from punica_serve.engine.ranks.doorbell import Doorbell
from punica_serve.engine.ranks.message_ring import RingReader, RingWriter, make_ring
from punica_serve.protocol import MAX_FRAME_BYTES

#: Room for the longest request and many steps. Pages that nobody has written take no memory.
_RING_BYTES = 2 * MAX_FRAME_BYTES


@dataclass(frozen=True, slots=True)
class ReaderPlace:
    """The ring and the bell that a reader's process inherits, as file descriptors, and its place among all readers."""

    ring_fd: int
    bell_fd: int
    index: int
    num_readers: int


class RankRing:
    """The writer's end. One thread at a time may write."""

    def __init__(self, num_readers: int) -> None:
        self._fd = make_ring(_RING_BYTES, num_readers)
        self._writer = RingWriter(self._fd, num_readers)
        self._bells = [Doorbell() for _ in range(num_readers)]

    def place(self, index: int) -> ReaderPlace:
        """The place of a reader in another process."""
        return ReaderPlace(self._fd, self._bells[index].fd, index, len(self._bells))

    def reader(self, index: int) -> tuple[RingReader, Doorbell]:
        """A reader in this process."""
        return RingReader(self._fd, len(self._bells), index), self._bells[index]

    def write(self, frame: bytes, timeout_s: float) -> None:
        """Raises RingStuck if the ``slowest`` reader has not made room by then."""
        self._writer.write(frame, timeout_s)
        for bell in self._bells:
            bell.ring()

    def slowest(self) -> int:
        """The reader that has read least."""
        return self._writer.slowest()

    def launched_ns(self, index: int) -> int:
        """See ``RingWriter.launched_ns``."""
        return self._writer.launched_ns(index)

    def close(self) -> None:
        """Nobody writes or reads here any more. The memory stays as long as a process has mapped it."""
        os.close(self._fd)
        for bell in self._bells:
            bell.close()
