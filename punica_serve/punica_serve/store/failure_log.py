"""Log lines about failures that last: one at first, then at most one a minute, with the number that it stands for."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from logging import Logger
from threading import Lock

from punica_serve.numbers import counted

#: Between two lines about one failure. It is over when nothing failed for as long, and something worked then.
_QUIET_S = 60.0

#: The attempt, and the error's type and number. The code has few of each.
_Key = tuple[str, str, int | None]


@dataclass(slots=True)
class _Streak:
    """A failure that was logged and may come again."""

    logged_s: float
    failed_s: float
    num_failures: int = 1
    #: Those that no line has counted yet.
    num_new: int = 0


class FailureLog:
    """Tells failures apart by what was done and by the kind of error. Thread-safe.

    A full disk refuses every upload and a store that is down every download: a line for each would say nothing new.
    """

    def __init__(self, log: Logger, now_s: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._now_s = now_s
        self._streaks: dict[_Key, _Streak] = {}
        self._lock = Lock()

    def failed(self, what: str, error: Exception) -> None:
        """Logs the failure, or counts it for a later line."""
        kind = type(error).__name__
        key = what, kind, error.errno if isinstance(error, OSError) else None
        with self._lock:
            since = self._count(key)
        if since is not None:
            self._log.warning("%s failed: %s: %s%s", what, kind, error, since)

    def worked(self, what: str) -> None:
        """Logs the end of this work's failures, once they seem to be over."""
        if not self._streaks:
            return
        now_s = self._now_s()
        with self._lock:
            streaks = {key: each for key, each in self._streaks.items() if key[0] == what}
            if not streaks or any(now_s - each.failed_s < _QUIET_S for each in streaks.values()):
                return
            for key in streaks:
                del self._streaks[key]
        failures = counted(sum(each.num_failures for each in streaks.values()), "failure")
        self._log.info("%s works again, after %s", what, failures)

    def _count(self, key: _Key) -> str | None:
        """The end of the failure's line; None if it gets none now."""
        now_s = self._now_s()
        streak = self._streaks.get(key)
        if streak is None:
            self._streaks[key] = _Streak(now_s, now_s)
            return ""
        streak.failed_s = now_s
        streak.num_failures += 1
        streak.num_new += 1
        after_s = now_s - streak.logged_s
        if after_s < _QUIET_S:
            return None
        since = f" ({counted(streak.num_new, 'time')} in {after_s:.0f} s)"
        streak.logged_s, streak.num_new = now_s, 0
        return since
