"""A timeout that calls a function, for protocols whose callbacks can't await."""

import asyncio
from collections.abc import Callable


class Deadline:
    """Calls ``act`` ``timeout_s`` after ``start``, unless ``cancel`` comes first."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_s: float, act: Callable[[], None]) -> None:
        self._loop = loop
        self._timeout_s = timeout_s
        self._act = act
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts it. Has no effect while it runs."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._act)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
