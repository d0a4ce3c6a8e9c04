"""Exponential backoff before a retry, as after a lost link or a dead worker."""

import random


class Backoff:
    """Waits that double at every failure up to a maximum, and start over after a long enough success."""

    def __init__(self, first_s: float, highest_s: float, *, reset_after_s: float) -> None:
        self._first_s = first_s
        self._highest_s = highest_s
        self._reset_after_s = reset_after_s
        self._next_s = first_s

    def after(self, lived_s: float) -> float:
        """The wait, in seconds, after the failure of something that worked for ``lived_s`` seconds (0: it never did).

        Jitter takes off up to a half, so that processes that failed together don't all retry together.
        """
        if lived_s >= self._reset_after_s:
            self._next_s = self._first_s
        wait_s = self._next_s
        self._next_s = min(2 * wait_s, self._highest_s)
        return wait_s * random.uniform(0.5, 1.0)
