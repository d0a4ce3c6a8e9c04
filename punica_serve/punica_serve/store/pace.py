"""The minimum rate of an upload or download that occupies a limited slot. Knows no clock and no socket."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MinRate:
    """The minimum number of bytes in each window of waiting time."""

    bytes_per_s: int = 64 << 10
    window_s: float = 30.0

    def __str__(self) -> str:
        return f"{self.bytes_per_s >> 10} KiB/s over {self.window_s:g} s"


class Pace:
    """Compares the bytes received with the time spent waiting for them, window by window.

    Only waiting counts: a client is not to blame for a slow disk of ours.
    """

    def __init__(self, rate: MinRate) -> None:
        self._rate = rate
        #: Waiting time in the current window.
        self._waited_s = 0.0
        self._num_bytes = 0

    @property
    def patience_s(self) -> float:
        """How long the next wait may take: to the end of the first window that would have too few bytes."""
        rest_s = self._rate.window_s - self._waited_s
        has_enough = self._num_bytes >= self._rate.bytes_per_s * self._rate.window_s
        return rest_s + (self._rate.window_s if has_enough else 0.0)

    def note(self, waited_s: float, num_bytes: int) -> None:
        """Counts bytes that came after a wait of at most ``patience_s``."""
        self._waited_s += waited_s
        if self._waited_s >= self._rate.window_s:
            self._waited_s -= self._rate.window_s
            self._num_bytes = 0
        self._num_bytes += num_bytes
