"""Tells the scheduler, for the cluster's pages, how many promises this frontend has judged."""

import asyncio
from collections.abc import Callable

from punica_serve.protocol import NO_PROMISES, PromiseCounts, PromisesJudged

#: The least time between two messages, in seconds.
INTERVAL_S = 1.0


class PromiseReporter:
    """Adds up judged promises and sends them at most once each INTERVAL_S, and only if there are any.

    Without a link they wait, as four numbers. Those of a message that is lost with its link are not sent again: the
    frontend's own metrics and the usage have them.
    """

    def __init__(self, send: Callable[[PromisesJudged], bool]) -> None:
        """``send`` returns False without a link; the link's owner calls ``resume`` when it is back."""
        self._send = send
        self._unsent = NO_PROMISES
        self._timer: asyncio.TimerHandle | None = None

    def add(self, promises: PromiseCounts) -> None:
        self._unsent += promises
        self.resume()

    def resume(self) -> None:
        """Sends what waits, after INTERVAL_S."""
        if self._unsent and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._flush)

    def close(self) -> None:
        """Stops the timer and drops unsent counts."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush(self) -> None:
        self._timer = None
        if self._send(PromisesJudged(self._unsent)):
            self._unsent = NO_PROMISES
