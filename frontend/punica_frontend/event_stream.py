"""Server-sent events of one request's frames."""

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from punica_frontend.answers import Frame
from punica_frontend.connection import run_while_connected
from punica_frontend.errors import error_object
from punica_serve.errors import PunicaError

log = logging.getLogger(__name__)

_DONE = b"data: [DONE]\n\n"


class EventStream(Response):
    """``data: {frame}`` for each frame, then ``data: [DONE]``.

    Errors before the first frame become answers with a status of their own, later ones an event with ``error``. A
    client that leaves, or is cut because it takes nothing, closes ``frames``.
    """

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncGenerator[Frame, None]) -> None:
        self._frames = frames
        self.status_code = 200
        self.background = None
        # Reverse proxies must pass events on as they come.
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await run_while_connected(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._frames) as frames:
            first = await anext(frames)
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await _send_body(send, _event(first))
            num_tokens = len(first.token_ids)
            try:
                async for frame in frames:
                    await _send_body(send, _event(frame))
                    num_tokens += len(frame.token_ids)
            except Exception as error:
                if not isinstance(error, PunicaError):
                    log.exception("an event stream failed")
                last = Frame(first.request_id, num_tokens, finish_reason="error", error=error_object(error))
                await _send_body(send, _event(last))
        await _send_body(send, _DONE, more=False)


def _event(content: object) -> bytes:
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


async def _send_body(send: Send, body: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})
