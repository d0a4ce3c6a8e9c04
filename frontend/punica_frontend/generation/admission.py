"""Whether a frontend accepts new requests, and whether any are still running."""

import asyncio

from punica_serve.errors import ClusterUnavailable


class Admission:
    """Open until a drain closes it. ``empty`` then returns when the last request has left."""

    def __init__(self) -> None:
        self.is_open = True
        self._num_inside = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def close(self) -> None:
        self.is_open = False

    def check(self) -> None:
        """Raises ClusterUnavailable once it is closed."""
        if not self.is_open:
            raise ClusterUnavailable("this frontend is shutting down and accepts no new requests; try another")

    def enter(self) -> None:
        """Admits a request, which must ``leave`` once its whole answer has been sent. Raises ClusterUnavailable."""
        self.check()
        self._num_inside += 1
        self._empty.clear()

    def leave(self) -> None:
        self._num_inside -= 1
        if self._num_inside == 0:
            self._empty.set()

    async def empty(self) -> None:
        """Returns once no request is running. More may come unless it is closed."""
        await self._empty.wait()
