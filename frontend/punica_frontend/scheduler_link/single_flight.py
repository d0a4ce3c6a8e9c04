"""Calls that many callers share, so that the work is done once."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class CoalescedCall(Generic[T]):
    """Merges concurrent calls. No caller gets a result whose computation began before the call.

    A caller that arrives during a computation waits for the next one, together with all others that do. The computation
    must end by itself: it continues when its callers leave.
    """

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._under_way: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        if self._next is None:
            self._next = asyncio.create_task(self._ask_after(self._under_way))
            self._next.add_done_callback(_retrieve_exception)
        return await asyncio.shield(self._next)

    async def _ask_after(self, previous: asyncio.Task[T] | None) -> T:
        if previous is not None:
            await asyncio.wait((previous,))
        self._under_way, self._next = self._next, None
        return await self._ask()


class CachedCall(Generic[T]):
    """Keeps a result, or an error, for a while, and never computes it more often than that.

    The computation must end by itself: it continues when its callers leave.
    """

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, T]], *, good_for_s: float) -> None:
        self._ask = ask
        self._good_for_s = good_for_s
        self._newest: asyncio.Task[T] | None = None
        self._asked_s = 0.0

    async def __call__(self) -> T:
        now_s = asyncio.get_running_loop().time()
        if self._newest is None or (self._newest.done() and now_s >= self._asked_s + self._good_for_s):
            self._asked_s = now_s
            self._newest = asyncio.create_task(self._ask())
            self._newest.add_done_callback(_retrieve_exception)
        return await asyncio.shield(self._newest)


def _retrieve_exception(task: asyncio.Task[T]) -> None:
    """Marks an error as seen: without waiting callers asyncio would log it as never retrieved."""
    if not task.cancelled():
        task.exception()
