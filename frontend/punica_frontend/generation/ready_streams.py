"""Which of one reader's streams have output to take, in the order in which they got it."""

import asyncio
from collections import deque
from collections.abc import Callable


class ReadyStreams:
    """A queue of indices for one reader. Each token passes it, so it does less than asyncio's."""

    def __init__(self, take_directly: Callable[[int], bool] = lambda index: False) -> None:
        """While the reader waits, ``take_directly`` may take a stream's output in its place; it then returns True."""
        self._take_directly = take_directly
        self._indices: deque[int] = deque()
        #: Set while the reader waits.
        self._waiting: asyncio.Future[None] | None = None

    def marker(self, index: int) -> Callable[[], None]:
        """Returns the function that a stream calls when it becomes ready."""

        def mark() -> None:
            if self._waiting is not None and not self._waiting.done() and self._take_directly(index):
                return
            self._indices.append(index)
            if self._waiting is not None and not self._waiting.done():
                self._waiting.set_result(None)

        return mark

    async def next(self) -> int:
        """Returns the index that has been ready for longest; waits until there is one. Has one reader."""
        if not self._indices:
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        return self._indices.popleft()
