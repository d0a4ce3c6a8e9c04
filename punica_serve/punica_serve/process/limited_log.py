"""Log lines whose number others choose: strangers, or clients with mistakes."""

import logging
import threading
import time
from collections.abc import Callable


class LimitedLog:
    """Writes one line in a while. Lines between are left out, and counted in the next one. Any thread may call it."""

    def __init__(self, log: logging.Logger, every_s: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._every_s = every_s
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._written_s = -every_s
        self._num_left_out = 0

    def warning(self, message: str, *args: object) -> None:
        """The message and its arguments are those of ``Logger.warning``."""
        with self._lock:
            now_s = self._monotonic()
            if now_s - self._written_s < self._every_s:
                self._num_left_out += 1
                return
            num_left_out, self._num_left_out, self._written_s = self._num_left_out, 0, now_s
        since = f" (and {num_left_out} more since the last such line)" if num_left_out else ""
        self._log.warning(message + "%s", *args, since)
