"""The frames that a rank gets from its leader: it polls for them while it has work, and sleeps otherwise."""

import time
from collections.abc import Callable

from punica_serve.engine.ranks.doorbell import Doorbell
from punica_serve.engine.ranks.message_ring import RingReader

#: The longest sleep: a safeguard only, since every frame rings.
_SLEEP_S = 1.0
#: Reads without a frame between two looks at the bell and the clock, which take as long as some of them: 10 µs.
_NUM_READS = 40


class RankInbox:
    """A reader of the ring and its bell."""

    def __init__(self, ring: RingReader, bell: Doorbell, *, poll_s: float, has_work: Callable[[], bool]) -> None:
        """``poll_s``: how long to poll without work before sleeping; a rank on a CPU has no core to spare for it.

        ``has_work``: whether a step is running, so that the next one is about to come. It is asked once in ``poll_s``.
        """
        self._ring = ring
        self._bell = bell
        self._poll_s = poll_s
        self._has_work = has_work

    def take(self) -> bytes:
        """The next frame, however long it takes: the process ends with its leader."""
        while (frame := self._polled()) is None:
            if not self._has_work():
                self._bell.wait(_SLEEP_S)
        return frame

    def _polled(self) -> bytes | None:
        until_s = time.monotonic() + self._poll_s
        while (frame := self._read()) is None and time.monotonic() < until_s:
            self._bell.wait(0.0)  # forgets old rings, and lets other threads run
        return frame

    def _read(self) -> bytes | None:
        """The next frame, if one comes at once."""
        read = self._ring.read
        for _ in range(_NUM_READS):
            if (frame := read()) is not None:
                return frame
        return None
