"""The queue of one reader: requests with output to take, in the order in which they got it."""

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class ReaderQueue(Generic[T]):
    """A queue for one reader, which does less than asyncio's and tells whether its reader waits."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        #: Whether the reader has taken all there was, and waits.
        self.has_waiting_reader = False
        self._waiting: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> None:
        """Appends an item, and wakes the reader."""
        self._items.append(item)
        self.has_waiting_reader = False
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def next(self) -> T:
        """Takes the item that has waited for longest; waits until there is one. Has one reader."""
        if not self._items:
            self._waiting = asyncio.get_running_loop().create_future()
            self.has_waiting_reader = True
            try:
                await self._waiting
            finally:
                self.has_waiting_reader, self._waiting = False, None
        return self._items.popleft()
