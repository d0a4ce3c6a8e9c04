"""What callers are told of the cluster, encoded once for all of a frontend who are told the same."""

import asyncio
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from punica_frontend.scheduler_client import SchedulerClient
from punica_frontend.schemas import ErrorObject
from punica_frontend.sharing import Kept
from punica_frontend.watch.view import ClusterView, Viewer, encode
from punica_serve.protocol import ClusterHistory, ClusterSnapshot, Mark

#: The scheduler takes a sample a second: asked sooner, it has nothing to add.
_PAST_GOOD_FOR_S = 1.0


class HistoryFrame(msgspec.Struct, frozen=True, tag="history"):
    """The last minutes, in columns. It comes once."""

    history: ClusterHistory


class ClusterFrame(msgspec.Struct, frozen=True, tag="cluster"):
    """The cluster as it is; of its `marks`, those that are new or have grown."""

    cluster: ClusterView


class UnavailableFrame(msgspec.Struct, frozen=True, tag="unavailable"):
    """The scheduler does not answer, for now."""

    error: ErrorObject


WatchFrame = HistoryFrame | ClusterFrame | UnavailableFrame


class Told(NamedTuple):
    """A cluster as JSON."""

    #: By itself.
    body: bytes
    #: The same as a watcher's frame.
    frame: str


class Frames:
    """Of a thousand GPUs a frame is tens of milliseconds of JSON, which a thread can give up in between."""

    def __init__(self, client: SchedulerClient) -> None:
        self._client = client
        #: The last minutes. Raises ClusterUnavailable.
        self.past = Kept(self._encode_past, good_for_s=_PAST_GOOD_FOR_S)
        self._newest: ClusterSnapshot | None = None
        #: Of the newest snapshot, by the eyes that may see it so and its marks; they may be on their way.
        self._encoded: dict[tuple[str, bool, tuple[Mark, ...]], asyncio.Task[Told]] = {}

    async def cluster(self, cluster: ClusterSnapshot, viewer: Viewer, since_ns: int = 0) -> Told:
        """What the viewer may see of it, and its marks since then."""
        if cluster is not self._newest:
            self._newest, self._encoded = cluster, {}
        marks = tuple(mark for mark in cluster.marks if mark.at_ns >= since_ns)
        key = (viewer.caller.tenant, viewer.caller.is_admin, marks)
        if key not in self._encoded:
            encoding = asyncio.to_thread(_told, replace(cluster, marks=marks), viewer)
            self._encoded[key] = asyncio.create_task(encoding)
        return await asyncio.shield(self._encoded[key])  # whoever leaves takes it from nobody

    async def _encode_past(self) -> str:
        return await asyncio.to_thread(frame_of, HistoryFrame(await self._client.history()))


def frame_of(frame: WatchFrame) -> str:
    """As it is sent."""
    return encode(frame).decode()


def _told(cluster: ClusterSnapshot, viewer: Viewer) -> Told:
    body = encode(viewer.view(cluster))
    return Told(body, f'{{"type":"{ClusterFrame.__struct_config__.tag}","cluster":{body.decode()}}}')
