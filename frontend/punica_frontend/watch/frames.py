"""Views of the cluster, encoded once for all callers of a frontend who may see the same."""

import asyncio
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from punica_frontend.api.schemas import ErrorObject
from punica_frontend.scheduler_link.scheduler_client import SchedulerClient
from punica_frontend.scheduler_link.single_flight import CachedCall
from punica_frontend.watch.view import ClusterView, Viewer, encode
from punica_serve.protocol import ClusterHistory, ClusterSnapshot

#: The scheduler samples once a second, so a newer history would be the same.
_PAST_GOOD_FOR_S = 1.0


class HistoryFrame(msgspec.Struct, frozen=True, tag="history"):
    """The last minutes, in columns. Sent once."""

    history: ClusterHistory


class ClusterFrame(msgspec.Struct, frozen=True, tag="cluster"):
    """The current cluster. Its `marks` are only those that are new or have changed."""

    cluster: ClusterView


class UnavailableFrame(msgspec.Struct, frozen=True, tag="unavailable"):
    """The scheduler does not answer at the moment."""

    error: ErrorObject


WatchFrame = HistoryFrame | ClusterFrame | UnavailableFrame


class EncodedCluster(NamedTuple):
    """A view of the cluster as JSON."""

    #: The view alone.
    body: bytes
    #: The view as a watcher's frame.
    frame: str


class Frames:
    """Encodes views in threads: for a thousand GPUs it takes tens of milliseconds."""

    def __init__(self, client: SchedulerClient) -> None:
        self._client = client
        #: Returns the encoded history. Raises ClusterUnavailable.
        self.past = CachedCall(self._encode_past, good_for_s=_PAST_GOOD_FOR_S)
        self._newest: ClusterSnapshot | None = None
        #: Encodings of the newest snapshot, finished or running, by what the viewer may see and the number of marks,
        #: which are those since a time.
        self._encoded: dict[tuple[str, bool, int], asyncio.Task[EncodedCluster]] = {}

    async def cluster(self, cluster: ClusterSnapshot, viewer: Viewer, since_ns: int = 0) -> EncodedCluster:
        """Returns the viewer's view, with the marks since then."""
        if cluster is not self._newest:
            self._newest, self._encoded = cluster, {}
        marks = tuple(mark for mark in cluster.marks if mark.at_ns >= since_ns)
        key = (viewer.caller.tenant_id, viewer.caller.is_admin, len(marks))
        if key not in self._encoded:
            encoding = asyncio.to_thread(_encode, replace(cluster, marks=marks), viewer)
            self._encoded[key] = asyncio.create_task(encoding)
        return await asyncio.shield(self._encoded[key])  # others may wait for it after one has left

    async def _encode_past(self) -> str:
        return await asyncio.to_thread(frame_of, HistoryFrame(await self._client.history()))


def frame_of(frame: WatchFrame) -> str:
    """Returns the frame as it is sent."""
    return encode(frame).decode()


def _encode(cluster: ClusterSnapshot, viewer: Viewer) -> EncodedCluster:
    body = encode(viewer.view(cluster))
    return EncodedCluster(body, f'{{"type":"{ClusterFrame.__struct_config__.tag}","cluster":{body.decode()}}}')
