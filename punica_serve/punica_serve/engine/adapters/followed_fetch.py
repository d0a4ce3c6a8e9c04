"""A fetch of an adapter's files, and the thread that packs them while they come.

    waiting ──▶ following ──▶ copied
       │            ▼
       └─────▶ left alone

The thread begins once bytes have come. Where it makes no copy, or the fetch ends before it begins, the fetch alone
decides, which then also names what went wrong.
"""

from concurrent.futures import Future
from pathlib import Path
from threading import Event, Lock

from punica_serve.engine.adapters.host_cache import HostCopy


class FollowedFetch:
    """Ends with the copy in host memory, or as the fetch does."""

    def __init__(self, fetch: "Future[Path]") -> None:
        #: Running once the fetch has ended and the thread alone is waited for, which a disk may hold.
        self.future: Future[Path | HostCopy] = Future()
        #: The thread is to end: the fetch has failed, or nobody wants the adapter.
        self.stop = Event()
        self._fetch = fetch
        self._lock = Lock()
        self._is_following = False
        self._is_over = False
        fetch.add_done_callback(self._fetched)

    def begin(self) -> bool:
        """The thread begins. False: there is nothing to do, since the fetch has ended."""
        with self._lock:
            self._is_following = not self._is_over
            return self._is_following

    def end(self, copy: HostCopy | None) -> None:
        """The thread has ended. It gives its reference to the copy away."""
        with self._lock:
            self._is_following = False
            if copy is not None:
                self._is_over = True
        if copy is not None:
            self.future.set_result(copy)
        elif self._fetch.done():
            self._pass_on()

    def _fetched(self, fetch: "Future[Path]") -> None:
        if fetch.exception() is not None:
            self.stop.set()
        self._pass_on()

    def _pass_on(self) -> None:
        """Ends as the fetch has, unless a thread is at it or has ended this already."""
        with self._lock:
            if self._is_following:
                self.future.set_running_or_notify_cancel()
            if self._is_following or self._is_over:
                return
            self._is_over = True
        self.stop.set()
        if (error := self._fetch.exception()) is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(self._fetch.result())
