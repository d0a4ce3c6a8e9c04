"""One client's websocket: its running requests, and frames in both directions.

``frame_types`` defines the frames; ``stream_schema`` describes them to clients.

An invalid frame gets an error frame and affects no other request. The error frame has the finish_reason "error" if no
request of its name is running, and none if one is. In OpenAI's format ``done`` says the same.

One task writes to the client. A request with output waits in its queue once, however much arrives meanwhile. So a
client that reads slowly gets fewer and longer frames, and its backlog bounds what waits for it. While that task waits
with nothing to write, single tokens are written without waking it.
"""

import asyncio
import contextlib
import json

import msgspec
from pydantic import ValidationError
from starlette.types import Receive

from punica_frontend.api.caller import Caller
from punica_frontend.api.errors import error_object, invalid_field
from punica_frontend.api.schemas import MAX_ID_CHARS
from punica_frontend.generation.answers import Frame
from punica_frontend.generation.generator import Generator
from punica_frontend.generation.reader_queue import ReaderQueue
from punica_frontend.http.body_pieces import PieceWriter
from punica_frontend.scheduler_link.live_request import Backlog
from punica_frontend.websocket.frame_types import (
    FRAME,
    BeginFrame,
    CancelFrame,
    ChunkFrame,
    ClientFrame,
    PingFrame,
    PongFrame,
    ServerFrame,
)
from punica_frontend.websocket.openai_frames import Shapes
from punica_frontend.websocket.websocket_request import WebSocketRequest
from punica_serve.config.pydantic_errors import most_telling
from punica_serve.errors import InvalidRequest, OutOfCapacity, PunicaError

#: The most requests that run on one socket.
MAX_LIVE = 1_024

#: The most queued requests and frames; beyond it the session stops reading from the client.
MAX_QUEUED = MAX_LIVE + 64

_encode = msgspec.json.Encoder().encode


class _Left(Exception):
    """The client has left."""


class WebSocketSession:
    """Serves an accepted websocket until either side closes it, then cancels its requests."""

    def __init__(
        self,
        receive: Receive,
        pieces: PieceWriter,
        caller: Caller,
        generator: Generator,
        shapes: Shapes,
        *,
        max_frame_bytes: int,
    ) -> None:
        """``receive`` is ASGI's; ``pieces`` sends messages of text, and raises OSError once the client has left."""
        self._receive = receive
        self._pieces = pieces
        self._caller = caller
        self._generator = generator
        self._shapes = shapes
        self._max_frame_bytes = max_frame_bytes
        #: Running requests by answer_id, until their last frames are taken.
        self._live: dict[str, WebSocketRequest] = {}
        self._backlog = Backlog()
        self._queue = ReaderQueue[WebSocketRequest | ServerFrame]()
        #: Set while the queue has room.
        self._has_room = asyncio.Event()

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
        """Raises OSError once the client has left, or was cut because it took nothing for too long."""
        while True:
            item = await self._queue.next()
            if isinstance(item, WebSocketRequest):
                await self._send_next(item)
            else:
                await self._send_frame(item)
            self._has_room.set()

    async def _send_next(self, request: WebSocketRequest) -> None:
        frames = request.next_frames()
        if request.is_over and self._live.get(request.answer_id) is request:
            del self._live[request.answer_id]
        try:
            for frame in frames:
                await self._send_frame(frame)
        finally:
            if request.is_over:
                request.close()

    async def _send_frame(self, frame: ServerFrame) -> None:
        await self._pieces.send(_encode(frame))

    async def _read(self, group: asyncio.TaskGroup) -> None:
        """Raises _Left once the client has left, which ends the group."""
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                raise _Left
            text = message.get("text")
            self._take(message["bytes"] if text is None else text.encode(), group)
            await asyncio.sleep(0)  # lets other clients run during a flood of frames
            while len(self._queue) >= MAX_QUEUED:
                self._has_room.clear()
                await self._has_room.wait()

    def _take(self, content: bytes, group: asyncio.TaskGroup) -> None:
        if len(content) > self._max_frame_bytes:
            limit = f"{self._max_frame_bytes} is the limit; send a shorter one"
            self._refuse(None, InvalidRequest(f"the frame has {len(content)} bytes, but {limit}"), is_native=True)
            return
        try:
            frame = _frame_of(content)
        except ValidationError as error:
            request_id, is_native = _sender(content)
            self._refuse(request_id, _frame_error(error), is_native=is_native)
        else:
            self._handle(frame, group)

    def _handle(self, frame: ClientFrame, group: asyncio.TaskGroup) -> None:
        match frame:
            case CancelFrame(request_id=request_id):
                # A request that is not running has finished, as the client will see.
                if request := self._live.pop(request_id, None):
                    request.cancel()
            case PingFrame(nonce=nonce):
                self._queue.put(PongFrame(nonce))
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
            request = WebSocketRequest(request_id, self._shapes.of(frame), self._queue, self._pieces)
            self._live[request_id] = request
            request.starting = group.create_task(self._start(request))

    async def _start(self, request: WebSocketRequest) -> None:
        try:
            await request.start(self._generator, self._caller, self._backlog)
        except Exception as error:
            request.fail(error)

    def _refuse(self, request_id: str | None, error: PunicaError, *, is_native: bool) -> None:
        """Answers a frame that started nothing."""
        self._generator.metrics.refused(error.code)
        goes_on = request_id in self._live
        refusal: ServerFrame = ChunkFrame(request_id, None, error_object(error), done=not goes_on)
        if is_native:
            refusal = Frame(request_id, 0, finish_reason=None if goes_on else "error", error=error_object(error))
        self._queue.put(refusal)


def _frame_of(content: bytes) -> ClientFrame:
    """Raises ValidationError, which names the field if a string has a lone surrogate: pydantic's parser takes that for
    a syntax error, and Python's accepts it.
    """
    try:
        return FRAME.validate_json(content)
    except ValidationError as error:
        if error.errors(include_url=False)[0]["type"] != "json_invalid":
            raise
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            raise error from None
    return FRAME.validate_python(document)


def _sender(content: bytes) -> tuple[str | None, bool]:
    """Returns an invalid frame's request_id, if it can be read, and whether it wants a native answer."""
    # The standard decoder accepts more than JSON, such as NaN and lone surrogates, which could not be sent back.
    with contextlib.suppress(ValueError, RecursionError):
        document = json.loads(content)
        if isinstance(document, dict) and isinstance(request_id := document.get("request_id"), str):
            return request_id[:MAX_ID_CHARS].encode().decode(), document.get("format") != "openai"
    return None, True


def _frame_error(error: ValidationError) -> InvalidRequest:
    first = most_telling(error.errors(include_url=False))
    if first["type"] == "json_invalid":
        return InvalidRequest(f"the frame is not JSON: {first['msg'].removeprefix('Invalid JSON: ')}")
    if first["loc"]:  # the first part of a field's location is the frame's type
        return invalid_field(first, first["loc"][1:], error.error_count())
    if not isinstance(first["input"], dict):
        return InvalidRequest("the frame must be a JSON object with an `op`")
    got = {"input": first["input"]["op"]} if "op" in first["input"] else {"type": "missing"}
    return invalid_field({**first, **got}, ("op",), error.error_count())
