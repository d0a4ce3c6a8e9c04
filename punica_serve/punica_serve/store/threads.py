"""Calls that may hang, on threads that can be abandoned.

A disk or server that stops answering would otherwise block its callers, and Python's own thread pools would even block
the process from exiting. Here a caller waits until its deadline and no longer; the thread ends when its call does.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from punica_serve.errors import StoreUnavailable

T = TypeVar("T")


class StoreThreads:
    """At most ``num_threads`` concurrent calls, abandoned ones included. For one event loop."""

    def __init__(self, num_threads: int, name: str) -> None:
        self._name = name
        self._free = asyncio.Semaphore(num_threads)

    async def call(self, function: Callable[[], T], *, timeout_s: float) -> T:
        """Runs ``function`` and returns or raises what it does. Raises StoreUnavailable if it takes, or waits for a
        thread, too long.
        """
        deadline = asyncio.timeout(timeout_s)
        try:
            async with deadline:
                await self._free.acquire()
                return await self._start(function)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise StoreUnavailable(f"{self._name} took longer than {timeout_s:g} s; try again later") from error

    def _start(self, function: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def finish(result: T | None, error: BaseException | None) -> None:
            loop.call_soon_threadsafe(self._finish, future, result, error)

        try:
            threading.Thread(target=_run, args=(function, finish), name=self._name, daemon=True).start()
        except RuntimeError:  # the system has no thread left for it
            self._free.release()
            raise
        return future

    def _finish(self, future: asyncio.Future[T], result: T | None, error: BaseException | None) -> None:
        self._free.release()
        if future.done():  # abandoned
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]
        else:
            future.set_exception(error)


def _run(function: Callable[[], T], finish: Callable[[T | None, BaseException | None], object]) -> None:
    with suppress(RuntimeError):  # the loop was closed meanwhile
        try:
            result = function()
        except BaseException as error:
            finish(None, error)
        else:
            finish(result, None)
    # An error refers to this frame; if this led back to it, the bytes of a failed upload would wait for the collector.
    del finish
