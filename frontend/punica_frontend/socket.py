"""One client's websocket: its live requests, and the frames in and out.

In:  {"op": "generate", "request_id", ...the fields of POST /v1/generate}, {"op": "cancel", "request_id"}
Out: answers.Frame

A frame that is wrong gets an error frame and harms nobody else. An error frame has the finish_reason "error" when no
request of that name goes on, and none when one does.
"""

import asyncio
import contextlib
import json
import logging
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import WebSocket
from pydantic import ValidationError
from starlette.websockets import WebSocketDisconnect

from punica_frontend.answers import Frame, usage
from punica_frontend.errors import error_object, invalid_field
from punica_frontend.generation import Generator
from punica_frontend.schemas import FRAME, MAX_ID_CHARS, CancelFrame, GenerateFrame
from punica_serve.errors import InvalidRequest, OutOfCapacity, PunicaError
from punica_serve.protocol import FinishReason

log = logging.getLogger(__name__)

#: Requests of one socket that may live at once.
MAX_LIVE = 1_024

#: Frames that wait for a slow reader. Beyond it each request's tokens are merged into its next frame.
MAX_QUEUED_FRAMES = 64


@dataclass(slots=True)
class _Live:
    """A request of the socket, until its last frame is queued."""

    task: asyncio.Task[None]
    num_prompt_tokens: int = 0
    num_tokens: int = 0

    def end(self, request_id: str, reason: FinishReason, error: dict[str, Any] | None = None) -> Frame:
        """The last frame, where the cluster does not give it."""
        used = usage(self.num_prompt_tokens, self.num_tokens)
        return Frame(request_id, self.num_tokens, finish_reason=reason, usage=used, error=error)


class GenerateSocket:
    """Serves an accepted websocket until either side ends it; then all its requests are cancelled."""

    def __init__(self, websocket: WebSocket, generator: Generator, *, max_frame_bytes: int) -> None:
        self._websocket = websocket
        self._generator = generator
        self._max_frame_bytes = max_frame_bytes
        self._live: dict[str, _Live] = {}
        self._outgoing: asyncio.Queue[Frame] = asyncio.Queue(MAX_QUEUED_FRAMES)

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._write())
                await self._read(group)
        except* WebSocketDisconnect:
            pass

    async def _write(self) -> None:
        """Raises WebSocketDisconnect when the client has left, or was cut because it took nothing for too long."""
        while True:
            frame = await self._outgoing.get()
            await self._websocket.send_text(msgspec.json.encode(frame).decode())

    async def _read(self, group: asyncio.TaskGroup) -> None:
        """Raises WebSocketDisconnect when the client has left, which ends the group."""
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message.get("code", 1005))
            text = message.get("text")
            await self._take(message["bytes"] if text is None else text.encode(), group)

    async def _take(self, content: bytes, group: asyncio.TaskGroup) -> None:
        if len(content) > self._max_frame_bytes:
            limit = f"{self._max_frame_bytes} is the limit; send a shorter one"
            await self._refuse(None, InvalidRequest(f"the frame has {len(content)} bytes, {limit}"))
            return
        try:
            frame = FRAME.validate_json(content)
        except ValidationError as error:
            await self._refuse(_request_id(content), _frame_error(error))
        else:
            await self._handle(frame, group)

    async def _handle(self, frame: GenerateFrame | CancelFrame, group: asyncio.TaskGroup) -> None:
        request_id = frame.request_id
        if isinstance(frame, CancelFrame):
            await self._cancel(request_id)
        elif request_id in self._live:
            message = f"request {request_id!r} is still running on this socket; choose another request_id"
            await self._refuse(request_id, InvalidRequest(message, param="request_id"))
        elif len(self._live) >= MAX_LIVE:
            message = f"{MAX_LIVE} requests run on this socket already; wait for one to finish"
            await self._refuse(request_id, OutOfCapacity(message))
        else:
            self._live[request_id] = _Live(group.create_task(self._serve(frame)))

    async def _serve(self, request: GenerateFrame) -> None:
        """One request, from its first frame to its last. It lives until its last frame is queued."""
        live = self._live[request.request_id]
        try:
            last = await self._stream(request, live)
        except PunicaError as error:
            last = live.end(request.request_id, "error", error_object(error))
        except Exception as error:
            log.exception("request %r of a websocket failed", request.request_id)
            last = live.end(request.request_id, "error", error_object(error))
        await self._outgoing.put(last)
        del self._live[request.request_id]

    async def _stream(self, request: GenerateFrame, live: _Live) -> Frame:
        """Queues all frames but the last, and returns that."""
        plan = await self._generator.plan(request, answer_id=request.request_id)
        live.num_prompt_tokens = len(plan.request.prompt_ids)
        async with aclosing(self._generator.stream(plan)) as frames:
            async for frame in frames:
                if frame.finish_reason:
                    return frame
                await self._outgoing.put(frame)
                live.num_tokens += len(frame.token_ids)
        raise AssertionError("the last frame of a stream has a finish_reason")

    async def _cancel(self, request_id: str) -> None:
        """A request that is not live has finished already, as the client will see."""
        live = self._live.pop(request_id, None)
        if live is None:
            return
        live.task.cancel()
        # None of its frames must come after the last one.
        await asyncio.wait([live.task])
        await self._outgoing.put(live.end(request_id, "cancelled"))

    async def _refuse(self, request_id: str | None, error: PunicaError) -> None:
        """The answer to a frame that began nothing."""
        goes_on = request_id in self._live
        await self._outgoing.put(
            Frame(request_id, 0, finish_reason=None if goes_on else "error", error=error_object(error))
        )


def _request_id(content: bytes) -> str | None:
    """The request_id of a frame that is otherwise wrong, if it can be told."""
    # The standard decoder takes more than JSON allows, such as NaN, and half characters, which could not be sent back.
    with contextlib.suppress(ValueError, RecursionError):
        document = json.loads(content)
        if isinstance(document, dict) and isinstance(request_id := document.get("request_id"), str):
            return request_id[:MAX_ID_CHARS].encode().decode()
    return None


def _frame_error(error: ValidationError) -> InvalidRequest:
    first = error.errors(include_url=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        return InvalidRequest(f"the frame is not JSON: {first['msg']}")
    # The first part of a field's location is the op that the frame is for.
    return invalid_field(first, first["loc"][1:] or ("op",), error.error_count())
