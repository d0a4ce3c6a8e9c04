"""A closed loop of streams: each that ends is replaced by another, until it is told to stop. Every frame is checked.

A frame must go on exactly where the one before ended, with exactly the tokens of the undisturbed answer. Any difference
is recorded as a *problem* in words, and every wait for the load raises the first.
"""

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from punica_faults.references import Reference
from waits import until

#: In flight at any time, over all sockets: a multiple of their number.
NUM_STREAMS = 208
#: Delay of a client whose frontend is gone.
RECONNECT_S = 0.1
OPEN_TIMEOUT_S = 5.0
#: Delay after a request was refused.
RETRY_S = 0.2
#: Error codes allowed before the first token: no scheduler takes the request, or the frontend is leaving.
REFUSALS = ("cluster_unavailable", "out_of_capacity")
#: A stream that has got so many tokens since a fault is past it: more than can have been under way.
PAST_TOKENS = 32


@dataclass(slots=True, eq=False)
class Stream:
    """One answer, as far as it has come."""

    reference: Reference
    frontend: str
    num_tokens: int = 0
    has_ended: bool = False
    #: Asked for after its frontend had refused others: one that leaves may close before it refuses this one too.
    is_late: bool = False
    #: Its client has had enough of it.
    is_cancelled: bool = False
    moved_s: float = field(default_factory=time.monotonic)
    longest_stall_s: float = 0.0

    def accept(self, frame: dict[str, Any], now_s: float) -> str | None:
        """Takes a frame; says what is wrong with it, if anything is."""
        tokens = tuple(frame["token_ids"])
        start, expected = self.num_tokens, self.reference.token_ids
        if frame["error"] is not None:
            return f"failed after {start} tokens: {frame['error']}"
        if frame["index"] != start:
            return f"goes on at {frame['index']} after {start} tokens"
        if tokens != expected[start : start + len(tokens)]:
            return f"differs from the undisturbed answer within {start}..{start + len(tokens)}"
        self.num_tokens += len(tokens)
        self.longest_stall_s = max(self.longest_stall_s, now_s - self.moved_s)
        self.moved_s = now_s
        if frame["finish_reason"] is not None:
            self.has_ended = True
            is_whole = frame["finish_reason"] == "length" and self.num_tokens == len(expected)
            if not is_whole and not (self.is_cancelled and frame["finish_reason"] == "cancelled"):
                return f"ended as {frame['finish_reason']!r} after {self.num_tokens} of {len(expected)} tokens"
        return None


class Load:
    """The clients of the cluster."""

    def __init__(
        self, urls: dict[str, str], references: Sequence[Reference], *, seed: int, num_streams: int = NUM_STREAMS
    ) -> None:
        self._urls = urls
        self._references = references
        # As likely as short: then streams in flight are of all lengths alike.
        self._weights = [1 / reference.max_tokens for reference in references]
        self._num_streams = num_streams
        self._random = random.Random(seed)
        self._clients: list[_Client] = []
        self._ids = itertools.count()
        self.is_stopping = False
        self.live: set[Stream] = set()
        self.problems: list[str] = []
        self.num_completed = 0
        self.num_tokens = 0
        #: Streams of clients whose frontend died.
        self.num_lost = 0
        #: Refused before their first token, and asked again.
        self.num_refused = 0
        #: Frontends whose clients may lose their streams, for somebody kills them.
        self.doomed: set[str] = set()

    @asynccontextmanager
    async def running(self, *, sockets_per_frontend: int = 2) -> AsyncIterator["Load"]:
        sockets = [name for name in self._urls for _ in range(sockets_per_frontend)]
        share = self._num_streams // len(sockets)
        self._clients = [_Client(self, name, self._urls[name], share) for name in sockets]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(client.run()) for client in self._clients]
            try:
                yield self
            finally:
                for task in tasks:
                    task.cancel()

    def check(self) -> None:
        assert not self.problems, f"{len(self.problems)} problems, the first: {self.problems[0]}"

    async def until_in_flight(self) -> None:
        """Waits until all streams are there, and each of those that began first has begun to move."""
        await self._until(lambda: len(self.live) == self._num_streams, "all streams are asked for")
        first = set(self.live)
        await self._until(
            lambda: all(stream.num_tokens or stream.has_ended for stream in first), "all streams move", first
        )

    def in_flight(self) -> dict[Stream, int]:
        """The streams that their clients hold, and how far each has come. Their stalls are measured from here on."""
        for stream in self.live:
            stream.longest_stall_s = 0.0
        return {stream: stream.num_tokens for stream in self.live}

    async def until_past(self, start: dict[Stream, int]) -> float:
        """Waits until every one of these streams has ended or is well past where it was; tells how long that took."""

        def all_past() -> bool:
            return all(
                stream.has_ended or stream.num_tokens >= num_tokens + PAST_TOKENS
                for stream, num_tokens in start.items()
            )

        return await self._until(all_past, "all streams in flight go on", set(start))

    async def stop(self, kept: Collection[Stream] | None = None) -> None:
        """Starts no more, lets these streams (or all) come to their ends, and cancels the others."""
        self.is_stopping = True
        for client in self._clients:
            await client.cancel_all_but(self.live if kept is None else kept)
        await self._until(lambda: not self.live, "all streams end")

    async def _until(self, holds: Callable[[], bool], what: str, streams: set[Stream] | None = None) -> float:
        def checked() -> bool:
            self.check()
            return holds()

        def describe() -> str:
            waiting = sorted((stream.num_tokens, stream.frontend) for stream in streams or self.live)
            return f"{len(waiting)} streams: {waiting[:8]}"

        return await until(checked, what, describe=describe)

    def draw(self) -> Reference:
        return self._random.choices(self._references, self._weights)[0]

    def next_id(self) -> str:
        return f"stream-{next(self._ids)}"


class _Client:
    """One websocket with its share of the streams, dialled again when its frontend is gone."""

    def __init__(self, load: Load, frontend: str, url: str, num_streams: int) -> None:
        self._load = load
        self._frontend = frontend
        self._url = url
        self._num_streams = num_streams
        self._streams: dict[str, Stream] = {}
        self._socket: ClientConnection | None = None
        #: Set when a stream has ended, so that another may begin.
        self._has_room = asyncio.Event()
        self._is_refused = False
        #: Some stream of this socket was.
        self._was_refused = False

    async def cancel_all_but(self, kept: Collection[Stream]) -> None:
        """Asks for it; on a socket that is being lost it is not needed."""
        with contextlib.suppress(WebSocketException):
            for request_id, stream in tuple(self._streams.items()):
                if stream not in kept and self._socket is not None:
                    stream.is_cancelled = True
                    await self._send(self._socket, {"op": "cancel", "request_id": request_id})

    async def run(self) -> None:
        while True:
            try:
                async with connect(
                    self._url, proxy=None, compression=None, open_timeout=OPEN_TIMEOUT_S, ping_interval=None
                ) as socket:
                    self._socket = socket
                    self._was_refused = False
                    await self._serve(socket)
                reason = "a plain close"
            except (OSError, WebSocketException) as error:
                reason = str(error)
            finally:
                if self._socket is not None:
                    self._socket.transport.abort()  # a cancelled close leaves it open
            self._lose_streams(reason)
            await asyncio.sleep(RECONNECT_S)

    async def _serve(self, socket: ClientConnection) -> None:
        starting = asyncio.create_task(self._keep_started(socket))
        try:
            async for text in socket:
                frame = msgspec.json.decode(text)
                if (stream := self._streams.get(frame["request_id"])) is not None:
                    self._take(stream, frame)
                else:
                    self._load.problems.append(f"a frame of no stream of this socket: {frame}")
        finally:
            starting.cancel()
            await asyncio.wait((starting,))

    async def _keep_started(self, socket: ClientConnection) -> None:
        with contextlib.suppress(WebSocketException):
            while True:
                self._has_room.clear()
                while len(self._streams) < self._num_streams and not self._load.is_stopping:
                    await self._start(socket)
                await self._has_room.wait()
                if self._is_refused:
                    self._is_refused = False
                    await asyncio.sleep(RETRY_S)

    async def _start(self, socket: ClientConnection) -> None:
        reference = self._load.draw()
        request_id, stream = self._load.next_id(), Stream(reference, self._frontend, is_late=self._was_refused)
        self._streams[request_id] = stream
        self._load.live.add(stream)
        await self._send(socket, {"op": "generate", "request_id": request_id, **reference.body})

    async def _send(self, socket: ClientConnection, frame: dict[str, Any]) -> None:
        await socket.send(msgspec.json.encode(frame).decode())

    def _take(self, stream: Stream, frame: dict[str, Any]) -> None:
        load = self._load
        before = stream.num_tokens
        if frame["error"] is not None and not before and frame["error"]["code"] in REFUSALS:
            load.num_refused += 1
            self._is_refused = self._was_refused = True
            self._end(frame["request_id"], stream)
            return
        if problem := stream.accept(frame, time.monotonic()):
            load.problems.append(f"{frame['request_id']} of {self._frontend} {problem} ({stream.reference.body})")
        load.num_tokens += stream.num_tokens - before
        if frame["finish_reason"] is not None:
            load.num_completed += 1
            self._end(frame["request_id"], stream)

    def _end(self, request_id: str, stream: Stream) -> None:
        stream.has_ended = True
        self._load.live.discard(stream)
        del self._streams[request_id]
        self._has_room.set()

    def _lose_streams(self, reason: str) -> None:
        lost = [stream for stream in self._streams.values() if stream.num_tokens or not stream.is_late]
        if lost and self._frontend not in self._load.doomed:
            self._load.problems.append(f"{self._frontend} closed a socket with {len(lost)} streams: {reason}")
        self._load.num_lost += len(lost)
        for request_id, stream in tuple(self._streams.items()):
            self._end(request_id, stream)
