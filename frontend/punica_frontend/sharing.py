"""One question at a time, however many ask it."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """Calls that share their answers. Nobody gets an answer to a question that was put before he came.

    So whoever comes while the question is on its way waits for the next one, with all others who do. What is asked
    must come to an end by itself: it goes on when those who wait for it leave.
    """

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._under_way: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        if self._next is None:
            self._next = asyncio.create_task(self._ask_after(self._under_way))
            self._next.add_done_callback(_look_at)
        return await asyncio.shield(self._next)

    async def _ask_after(self, previous: asyncio.Task[T] | None) -> T:
        if previous is not None:
            await asyncio.wait((previous,))
        self._under_way, self._next = self._next, None
        return await self._ask()


class Kept(Generic[T]):
    """A question whose answer, or error, is good for a while: it is not asked more often, however many ask it.

    What is asked must come to an end by itself: it goes on when those who wait for it leave.
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
            self._newest.add_done_callback(_look_at)
        return await asyncio.shield(self._newest)


def _look_at(task: asyncio.Task[T]) -> None:
    """An error that nobody waits for any more is no news."""
    if not task.cancelled():
        task.exception()
