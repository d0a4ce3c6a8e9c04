"""Work beside a download, on a thread of its own: hashing while the next bytes come, writing them to the disk.

The thread is a daemon: one that a disk holds must not keep the process from ending, which Python's own pools do.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Queue
from threading import Thread
from typing import Generic, TypeVar

T = TypeVar("T")


class _SideThread(Generic[T]):
    def __init__(self, work: Callable[[T], object]) -> None:
        self._work = work
        #: One waits while another is worked on, so that no more bytes are held.
        self._items: Queue[tuple[T] | None] = Queue(1)
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="store-side-thread", daemon=True)
        self._thread.start()

    def give(self, item: T) -> None:
        """Waits while another item waits. Raises the error of an earlier one."""
        self.raise_error()
        self._items.put((item,))

    def offer(self, item: T) -> None:
        """Gives an item unless another one waits."""
        if self._items.empty():
            self.give(item)

    def end(self) -> None:
        """Waits for all items."""
        self._items.put(None)
        self._thread.join()

    def raise_error(self) -> None:
        """Raises the error of the first item that had one."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (item := self._items.get()) is not None:
            if self._error is None:
                try:
                    self._work(*item)
                except BaseException as error:
                    self._error = error


@contextmanager
def side_thread(work: Callable[[T], object]) -> Iterator[_SideThread[T]]:
    """Calls ``work`` for items, one after the other, beside the caller's thread. All calls end within.

    One caller's thread gives all items. Raises the first error of ``work``.
    """
    thread = _SideThread(work)
    try:
        yield thread
    finally:
        thread.end()
    thread.raise_error()
