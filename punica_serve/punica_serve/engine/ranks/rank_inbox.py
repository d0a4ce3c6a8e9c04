"""The frames that a rank gets from its leader: it polls while steps follow each other closely, and sleeps otherwise."""

import time

from punica_serve.engine.ranks.doorbell import Doorbell
from punica_serve.engine.ranks.message_ring import RingReader

#: The longest sleep: a safeguard only, since every frame rings.
_SLEEP_S = 1.0


class RankInbox:
    """A reader of the ring and its bell."""

    def __init__(self, ring: RingReader, bell: Doorbell, *, poll_s: float) -> None:
        """``poll_s``: how long to poll before sleeping; a rank on a CPU has no core to spare for it."""
        self._ring = ring
        self._bell = bell
        self._poll_s = poll_s

    def take(self) -> bytes:
        """The next frame, however long it takes: the process ends with its leader."""
        while (frame := self._polled()) is None:
            self._bell.wait(_SLEEP_S)
        return frame

    def _polled(self) -> bytes | None:
        until_s = time.monotonic() + self._poll_s
        while (frame := self._ring.read()) is None and time.monotonic() < until_s:
            pass
        return frame
