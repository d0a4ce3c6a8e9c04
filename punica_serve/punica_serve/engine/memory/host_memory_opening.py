"""Makes a GPU's host memory ready on a thread of its own, while its process starts with the rest."""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress

from punica_serve.engine.memory.pinned_memory import HostMemory

#: From one look at the thread to the next.
_WAIT_S = 1.0
#: The thread fills memory on all cores, and those of each rank of a group do. Its process goes on importing meanwhile.
_NICE = 10


class HostMemoryOpening:
    """The system fills gigabytes with zeros page by page, which takes seconds; only pinning them is left to ``take``.

    Its owner takes the memory, or calls ``close``.
    """

    def __init__(self, allocate: Callable[[], HostMemory], *, in_background: bool) -> None:
        """``in_background``: ``allocate`` is called at once, on the thread; otherwise by ``take``."""
        self._allocate = allocate
        self._allocated: Future[HostMemory] | None = None
        if in_background:
            self._allocated = Future()
            threading.Thread(target=self._run, args=(self._allocated,), name="host-memory", daemon=True).start()

    def take(self, on_wait: Callable[[], None] = lambda: None) -> HostMemory:
        """The memory, whose owner the caller is. ``on_wait`` is called every second. Raises what ``allocate`` does.

        Call it once. Raises ConfigError if the memory can't be pinned.
        """
        if self._allocated is None:
            memory = self._allocate()
        else:
            while not wait([self._allocated], _WAIT_S).done:
                on_wait()  # where it raises, ``close`` still finds the memory
            allocated, self._allocated = self._allocated, None
            memory = allocated.result()
        memory.pin()
        return memory

    def close(self) -> None:
        """Gives back memory that nobody has taken, once it is there. Never waits."""
        allocated, self._allocated = self._allocated, None
        if allocated is not None:
            allocated.add_done_callback(_close)

    def _run(self, allocated: "Future[HostMemory]") -> None:
        try:
            _yield_to_others()
            allocated.set_result(self._allocate())
        except BaseException as error:
            allocated.set_exception(error)


def _close(allocated: "Future[HostMemory]") -> None:
    with suppress(Exception):
        allocated.result().close()


def _yield_to_others() -> None:
    """Lowers this thread's priority, and so that of the threads that it starts, where threads have their own."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), max(_NICE, os.getpriority(os.PRIO_PROCESS, 0)))
