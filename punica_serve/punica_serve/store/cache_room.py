"""The bytes that a process may add to the host's cache folder before it looks at all of it again.

A look takes a few calls of the system for each adapter, so 30 ms for a thousand, which a download would wait for; and
each call gives up Python's lock, which a worker's step loop needs.
"""

from threading import Lock

from punica_serve.store.cache_folder import CacheFolder

#: Processes of a host that may add at once, each its share of what was left at its last look, within the budget.
_MAX_PROCESSES = 8
#: The share of the budget that a look frees at least, so that a full cache is not looked at for each addition.
_SLACK = 1 / 16


class CacheRoom:
    """The room that one process has."""

    def __init__(self, folder: CacheFolder, budget_bytes: int) -> None:
        self._folder = folder
        self._budget_bytes = budget_bytes
        self._left_bytes = 0
        self._lock = Lock()

    def take(self, num_bytes: int) -> None:
        """Makes room for ``num_bytes`` more, for which others may go. Any thread may call it. Raises OSError."""
        with self._lock:
            if num_bytes > self._left_bytes:
                self._left_bytes = num_bytes + self._look(num_bytes)
            self._left_bytes -= num_bytes

    def _look(self, num_bytes: int) -> int:
        """This process's share of what is left beside ``num_bytes``."""
        freed = max(num_bytes, int(_SLACK * self._budget_bytes))
        left = self._folder.make_room(freed, self._budget_bytes) + freed - num_bytes
        return max(0, left) // _MAX_PROCESSES
