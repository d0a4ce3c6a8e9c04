"""One client's websocket: its live requests, and the frames in and out.

Frames are those of ``socket_frames``; ``stream_schema`` tells them to clients.

A frame that is wrong gets an error frame and harms nobody else. An error frame has the finish_reason "error" when no
request of that name goes on, and none when one does. In OpenAI's shape ``done`` says the same.

One writer sends to the client. A request that has something to take stands in its line once, whatever comes meanwhile:
so a client that reads slowly gets fewer and longer frames, and what waits for it is bounded by its backlog.
"""

import asyncio
import contextlib
import json
from collections import deque

import msgspec
from pydantic import ValidationError
from starlette.types import Receive, Send

from punica_frontend.answers import Frame
from punica_frontend.caller import Caller
from punica_frontend.errors import error_object, invalid_field
from punica_frontend.generation import Generator
from punica_frontend.live_request import Backlog
from punica_frontend.schemas import MAX_ID_CHARS
from punica_frontend.socket_frames import (
    FRAME,
    BeginFrame,
    CancelFrame,
    ChunkFrame,
    ClientFrame,
    PingFrame,
    Pong,
    ServerFrame,
)
from punica_frontend.socket_request import SocketRequest
from punica_frontend.socket_shapes import Shapes
from punica_serve.errors import InvalidRequest, OutOfCapacity, PunicaError
from punica_serve.mistakes import most_telling

#: Requests of one socket that may live at once.
MAX_LIVE = 1_024

#: Requests and frames in the writer's line beyond which nothing more is read from the client.
MAX_LINE = MAX_LIVE + 64

_encode = msgspec.json.Encoder().encode


class _Left(Exception):
    """The client has left."""


class GenerateSocket:
    """Serves an accepted websocket until either side ends it; then all its requests are cancelled."""

    def __init__(
        self,
        receive: Receive,
        send: Send,
        caller: Caller,
        generator: Generator,
        shapes: Shapes,
        *,
        max_frame_bytes: int,
    ) -> None:
        """``receive`` and ``send`` are the socket's, as in ASGI; ``send`` raises OSError once the client has left."""
        self._receive = receive
        self._send = send
        self._caller = caller
        self._generator = generator
        self._shapes = shapes
        self._max_frame_bytes = max_frame_bytes
        #: By the client's names; until their last frames are next in line.
        self._live: dict[str, SocketRequest] = {}
        self._backlog = Backlog()
        self._line: deque[SocketRequest | ServerFrame] = deque()
        #: Set while there is something in line, and while there is room in it.
        self._waiting = asyncio.Event()
        self._room = asyncio.Event()

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._write())
                await self._read(group)
        except* (_Left, OSError):
            pass
        finally:
            for request in self._live.values():
                request.close()

    async def _write(self) -> None:
        """Raises OSError when the client has left, or was cut because it took nothing for too long."""
        while True:
            while self._line:
                next_in_line = self._line.popleft()
                if isinstance(next_in_line, SocketRequest):
                    await self._send_next(next_in_line)
                else:
                    await self._send_frame(next_in_line)
                self._room.set()
            self._waiting.clear()
            await self._waiting.wait()

    async def _send_next(self, request: SocketRequest) -> None:
        frames = request.next_frames()
        if request.is_over and self._live.get(request.request_id) is request:
            del self._live[request.request_id]
        try:
            for frame in frames:
                await self._send_frame(frame)
        finally:
            if request.is_over:
                request.close()

    async def _send_frame(self, frame: ServerFrame) -> None:
        await self._send({"type": "websocket.send", "text": _encode(frame).decode()})

    async def _read(self, group: asyncio.TaskGroup) -> None:
        """Raises _Left when the client has left, which ends the group."""
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                raise _Left
            text = message.get("text")
            self._take(message["bytes"] if text is None else text.encode(), group)
            await asyncio.sleep(0)  # a flood of frames takes turns with everybody else
            while len(self._line) >= MAX_LINE:
                self._room.clear()
                await self._room.wait()

    def _take(self, content: bytes, group: asyncio.TaskGroup) -> None:
        if len(content) > self._max_frame_bytes:
            limit = f"{self._max_frame_bytes} is the limit; send a shorter one"
            self._refuse(None, InvalidRequest(f"the frame has {len(content)} bytes, {limit}"), is_native=True)
            return
        try:
            frame = FRAME.validate_json(content)
        except ValidationError as error:
            request_id, is_native = _sender(content)
            self._refuse(request_id, _frame_error(error), is_native=is_native)
        else:
            self._handle(frame, group)

    def _handle(self, frame: ClientFrame, group: asyncio.TaskGroup) -> None:
        match frame:
            case CancelFrame(request_id=request_id):
                # A request that is not live has finished already, as the client will see.
                if request := self._live.pop(request_id, None):
                    request.cancel()
            case PingFrame(nonce=nonce):
                self._stand_in_line(Pong(nonce))
            case _:
                self._begin(frame, group)

    def _begin(self, frame: BeginFrame, group: asyncio.TaskGroup) -> None:
        request_id, is_native = frame.request_id, frame.format == "native"
        if request_id in self._live:
            message = f"request {request_id!r} is still running on this socket; choose another request_id"
            self._refuse(request_id, InvalidRequest(message, param="request_id"), is_native=is_native)
        elif len(self._live) >= MAX_LIVE:
            message = f"{MAX_LIVE} requests run on this socket already; wait for one to finish"
            self._refuse(request_id, OutOfCapacity(message), is_native=is_native)
        else:
            request = SocketRequest(request_id, self._shapes.of(frame), self._stand_in_line)
            self._live[request_id] = request
            request.starting = group.create_task(self._start(request))

    async def _start(self, request: SocketRequest) -> None:
        try:
            await request.start(self._generator, self._caller, self._backlog)
        except Exception as error:
            request.fail(error)

    def _refuse(self, request_id: str | None, error: PunicaError, *, is_native: bool) -> None:
        """The answer to a frame that began nothing."""
        self._generator.figures.refused(error.code)
        goes_on = request_id in self._live
        refusal: ServerFrame = ChunkFrame(request_id, None, error_object(error), done=not goes_on)
        if is_native:
            refusal = Frame(request_id, 0, finish_reason=None if goes_on else "error", error=error_object(error))
        self._stand_in_line(refusal)

    def _stand_in_line(self, next_in_line: SocketRequest | ServerFrame) -> None:
        self._line.append(next_in_line)
        self._waiting.set()


def _sender(content: bytes) -> tuple[str | None, bool]:
    """The request_id of a frame that is otherwise wrong, if it can be told, and whether it wants a native answer."""
    # The standard decoder takes more than JSON allows, such as NaN, and half characters, which could not be sent back.
    with contextlib.suppress(ValueError, RecursionError):
        document = json.loads(content)
        if isinstance(document, dict) and isinstance(request_id := document.get("request_id"), str):
            return request_id[:MAX_ID_CHARS].encode().decode(), document.get("format") != "openai"
    return None, True


def _frame_error(error: ValidationError) -> InvalidRequest:
    first = most_telling(error.errors(include_url=False, include_context=False))
    if first["type"] == "json_invalid":
        return InvalidRequest(f"the frame is not JSON: {first['msg'].removeprefix('Invalid JSON: ')}")
    if first["loc"]:  # the first part of a field's location is the op that the frame is for
        return invalid_field(first, first["loc"][1:], error.error_count())
    if not isinstance(first["input"], dict):
        return InvalidRequest("the frame must be a JSON object; its `op` says what it is for")
    got = {"input": first["input"]["op"]} if "op" in first["input"] else {"type": "missing"}
    return invalid_field({**first, **got}, ("op",), error.error_count())
