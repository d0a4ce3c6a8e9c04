"""WS /v1/cluster/watch after authentication: the history once, then the cluster at intervals.

Watchers update at whole multiples of their interval, so that all of a frontend update together and share requests to
the scheduler and encodings. Nothing is queued for a slow reader: it gets the current cluster once it has taken the
frame before, and misses those between.
"""

import asyncio
from collections.abc import Callable
from math import floor

from starlette.types import Receive, Send
from websockets.frames import CloseCode

from punica_frontend.api.errors import error_object
from punica_frontend.scheduler_link.scheduler_client import SchedulerClient
from punica_frontend.tenancy.authenticator import NO_LONGER_VALID
from punica_frontend.watch.frames import Frames, UnavailableFrame, frame_of
from punica_frontend.watch.view import Viewer
from punica_serve.errors import PunicaError

#: How long a mark may still change after it was made.
_MARK_NS = 1_000_000_000


class _Left(Exception):
    """The client has left."""


class Watcher:
    """Serves an accepted websocket until the client leaves or its key becomes invalid."""

    def __init__(
        self,
        client: SchedulerClient,
        frames: Frames,
        viewer: Viewer,
        is_still_valid: Callable[[], bool],
        *,
        interval_s: float,
    ) -> None:
        self._client = client
        self._frames = frames
        self._viewer = viewer
        self._is_still_valid = is_still_valid
        self._interval_s = interval_s
        self._knows_past = False
        #: The client has the final state of all marks before this time.
        self._sent_ns = 0

    async def run(self, receive: Receive, send: Send) -> None:
        """``send`` raises OSError once the client has left, or was cut because it took nothing for too long."""
        try:
            async with asyncio.TaskGroup() as group:
                leaving = group.create_task(_left(receive))
                await self._send_frames(send)
                leaving.cancel()
        except* (_Left, OSError):
            pass

    async def _send_frames(self, send: Send) -> None:
        while self._is_still_valid():
            await send({"type": "websocket.send", "text": await self._next_frame()})
            await asyncio.sleep(self._until_next_turn())
        await send({"type": "websocket.close", "code": CloseCode.POLICY_VIOLATION, "reason": NO_LONGER_VALID})

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
            since_ns, self._sent_ns = self._sent_ns, cluster.now_ns - _MARK_NS
            return (await self._frames.cluster(cluster, self._viewer, since_ns)).frame
        except PunicaError as error:
            return frame_of(UnavailableFrame(error_object(error)))


async def _left(receive: Receive) -> None:
    """Raises _Left once the client has left. Its messages have no meaning."""
    while (await receive())["type"] != "websocket.disconnect":
        pass
    raise _Left
