"""A fake client of a websocket, whose ``send`` the test holds."""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from starlette.types import Message

from punica_frontend.websocket.websocket_session import WebSocketSession

#: Called with a peer: begins to serve it.
Serve = Callable[..., WebSocketSession]


class Peer:
    """A client that sends these frames and takes what it is sent while it ``reads``."""

    def __init__(
        self, frames: Iterable[dict[str, Any] | str], *, is_reading: bool = True, takes_at_once: bool = True
    ) -> None:
        """Without ``takes_at_once`` each frame is waited for."""
        self._frames: Iterator[dict[str, Any] | str] = iter(frames)
        self.num_sent = 0
        #: Frames that it got without a wait for them.
        self.num_written = 0
        self.received: list[dict[str, Any]] = []
        #: Lengths of those, in bytes.
        self.lengths: list[int] = []
        self.reads = asyncio.Event()
        self.leaves = asyncio.Event()
        self._takes_at_once = takes_at_once
        if is_reading:
            self.reads.set()

    async def receive(self) -> Message:
        frame = next(self._frames, None)
        if frame is None:
            await self.leaves.wait()
            return {"type": "websocket.disconnect", "code": 1000}
        self.num_sent += 1
        return {"type": "websocket.receive", "text": frame if isinstance(frame, str) else json.dumps(frame)}

    @property
    def is_writable(self) -> bool:
        return self._takes_at_once and self.reads.is_set() and not self.leaves.is_set()

    def write(self, piece: bytes) -> None:
        assert self.is_writable
        self.num_written += 1
        self._take(piece)

    async def send(self, piece: bytes) -> None:
        await self.reads.wait()
        if self.leaves.is_set():
            raise OSError("the client has left")
        self._take(piece)

    def _take(self, piece: bytes) -> None:
        self.received.append(json.loads(piece))
        self.lengths.append(len(piece))

    def of(self, request_id: str) -> list[dict[str, Any]]:
        return [frame for frame in self.received if frame["request_id"] == request_id]


def generate(request_id: str = "a", **fields: Any) -> dict[str, Any]:
    return {"op": "generate", "request_id": request_id, "prompt": "4", "ignore_eos": True, **fields}


def cancel(request_id: str) -> dict[str, Any]:
    return {"op": "cancel", "request_id": request_id}


def has_ended(frame: dict[str, Any]) -> bool:
    return bool(frame.get("finish_reason") or frame.get("done"))
