"""Which of one reader's streams have output to take, in the order in which they got it."""

import asyncio
from collections import deque


class ReadyStreams:
    """A queue of indices for one reader, which does less than asyncio's."""

    def __init__(self) -> None:
        self._indices: deque[int] = deque()
        #: Whether the reader has taken all there was, and waits.
        self.has_waiting_reader = False
        self._waiting: asyncio.Future[None] | None = None

    def mark(self, index: int) -> None:
        """Queues a stream that has become ready."""
        self._indices.append(index)
        self.has_waiting_reader = False
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def next(self) -> int:
        """Returns the index that has been ready for longest; waits until there is one. Has one reader."""
        if not self._indices:
            self._waiting = asyncio.get_running_loop().create_future()
            self.has_waiting_reader = True
            try:
                await self._waiting
            finally:
                self.has_waiting_reader, self._waiting = False, None
        return self._indices.popleft()
