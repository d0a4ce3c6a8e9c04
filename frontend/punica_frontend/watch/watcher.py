"""WS /v1/cluster/watch, less its door: the past once, and then the cluster again and again.

Watchers look at whole multiples of their interval, so that those of one frontend look together and share what they ask
the scheduler and what is encoded of it. Nothing waits for a watcher who reads slowly: he is sent the cluster as it is
once he has taken what was sent before, and misses what was between.
"""

import asyncio
from collections.abc import Callable
from math import floor

from starlette.types import Receive, Send
from websockets.frames import CloseCode

from punica_frontend.errors import error_object
from punica_frontend.scheduler_client import SchedulerClient
from punica_frontend.tenancy.door import MAY_NOT_STAY
from punica_frontend.watch.frames import Frames, UnavailableFrame, frame_of
from punica_frontend.watch.view import Viewer
from punica_serve.errors import PunicaError

#: Marks grow for so long after they were made.
_MARK_NS = 1_000_000_000


class _Left(Exception):
    """The client has left."""


class Watcher:
    """Serves an accepted websocket until the client leaves, or may no longer stay."""

    def __init__(
        self,
        client: SchedulerClient,
        frames: Frames,
        viewer: Viewer,
        may_stay: Callable[[], bool],
        *,
        interval_s: float,
    ) -> None:
        self._client = client
        self._frames = frames
        self._viewer = viewer
        self._may_stay = may_stay
        self._interval_s = interval_s
        self._knows_past = False
        #: Marks that were made before have been told, and grow no more.
        self._told_ns = 0

    async def run(self, receive: Receive, send: Send) -> None:
        """``send`` raises OSError once the client has left, or was cut because it took nothing for too long."""
        try:
            async with asyncio.TaskGroup() as group:
                leaving = group.create_task(_left(receive))
                await self._tell(send)
                leaving.cancel()
        except* (_Left, OSError):
            pass

    async def _tell(self, send: Send) -> None:
        while self._may_stay():
            await send({"type": "websocket.send", "text": await self._next_frame()})
            await asyncio.sleep(self._until_next_turn())
        await send({"type": "websocket.close", "code": CloseCode.POLICY_VIOLATION, "reason": MAY_NOT_STAY})

    def _until_next_turn(self) -> float:
        now_s = asyncio.get_running_loop().time()
        return (floor(now_s / self._interval_s) + 1) * self._interval_s - now_s

    async def _next_frame(self) -> str:
        try:
            if not self._knows_past:
                frame = await self._frames.past()
                self._knows_past = True
                return frame
            cluster = await self._client.cluster()
            since_ns, self._told_ns = self._told_ns, cluster.now_ns - _MARK_NS
            return (await self._frames.cluster(cluster, self._viewer, since_ns)).frame
        except PunicaError as error:
            return frame_of(UnavailableFrame(error_object(error)))


async def _left(receive: Receive) -> None:
    """What a watcher says means nothing but that he is there."""
    while (await receive())["type"] != "websocket.disconnect":
        pass
    raise _Left
