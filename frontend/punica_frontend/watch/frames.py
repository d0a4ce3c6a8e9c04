"""What watchers are told, encoded once for all of a frontend who are told the same."""

import asyncio

from msgspec.structs import replace

from punica_frontend.scheduler_client import SchedulerClient
from punica_frontend.sharing import Kept
from punica_frontend.watch.view import Viewer, encode
from punica_serve.protocol import ClusterHistory, ClusterSnapshot, Mark

#: The scheduler takes a sample a second: asked sooner, it has nothing to add.
_PAST_GOOD_FOR_S = 1.0


class Frames:
    """Of a thousand GPUs a frame is tens of milliseconds of JSON, which a thread can give up in between."""

    def __init__(self, client: SchedulerClient) -> None:
        self._client = client
        #: The last minutes. Raises ClusterUnavailable.
        self.past = Kept(self._encode_past, good_for_s=_PAST_GOOD_FOR_S)
        self._newest: ClusterSnapshot | None = None
        #: Of the newest snapshot, by the eyes that may see it so and its marks; they may be on their way.
        self._encoded: dict[tuple[str, bool, tuple[Mark, ...]], asyncio.Task[str]] = {}

    async def cluster(self, cluster: ClusterSnapshot, viewer: Viewer, since_ns: int) -> str:
        """What the viewer may see of it, and its marks since then."""
        if cluster is not self._newest:
            self._newest, self._encoded = cluster, {}
        marks = tuple(mark for mark in cluster.marks if mark.at_ns >= since_ns)
        key = (viewer.caller.tenant, viewer.caller.is_admin, marks)
        if key not in self._encoded:
            encoding = asyncio.to_thread(_cluster_frame, replace(cluster, marks=marks), viewer)
            self._encoded[key] = asyncio.create_task(encoding)
        return await asyncio.shield(self._encoded[key])  # whoever leaves takes it from nobody

    async def _encode_past(self) -> str:
        return await asyncio.to_thread(_past_frame, await self._client.history())


def _cluster_frame(cluster: ClusterSnapshot, viewer: Viewer) -> str:
    return encode({"type": "cluster", "cluster": viewer.view(cluster)}).decode()


def _past_frame(history: ClusterHistory) -> str:
    return encode({"type": "history", "history": history}).decode()
