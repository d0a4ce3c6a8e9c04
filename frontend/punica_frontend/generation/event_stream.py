"""An answer as server-sent events."""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Generic, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from punica_frontend.generation.direct_output import DirectOutput
from punica_frontend.http.body_pieces import PieceWriter, piece_writer
from punica_frontend.http.connection import run_while_connected
from punica_serve.errors import PunicaError

E = TypeVar("E")

log = logging.getLogger(__name__)

#: The bytes around an event's JSON.
EVENT_HEAD, EVENT_TAIL = b"data: ", b"\n\n"
_DONE = EVENT_HEAD + b"[DONE]" + EVENT_TAIL


class EventStream(Response, Generic[E]):
    """Sends ``data: {event}`` for each event, then ``data: [DONE]`` unless ``says_done`` is False.

    An error before the first event becomes an HTTP error answer, a later one the last event. ``events`` is closed when
    the client leaves, or is cut because it takes nothing.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[E, None],
        error_event: Callable[[Exception], object],
        *,
        says_done: bool = True,
        direct: DirectOutput | None = None,
    ) -> None:
        """``error_event`` makes the last event of a stream that fails.

        ``direct`` may write events itself after the first one, while ``events`` are waited for.
        """
        self._events = events
        self._error_event = error_event
        self._says_done = says_done
        self._direct = direct
        self.status_code = 200
        self.background = None
        # Tells reverse proxies not to buffer events.
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await run_while_connected(receive, self._send_all(send, piece_writer(scope, send)))

    async def _send_all(self, send: Send, pieces: PieceWriter) -> None:
        async with aclosing(self._events) as events:
            first = await anext(events)
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await pieces.send(event_line(first))
            if self._direct is not None:
                self._direct.open(pieces)
            try:
                async for event in events:
                    await pieces.send(event_line(event))
            except Exception as error:
                if not isinstance(error, PunicaError):
                    log.exception("an event stream failed")
                await pieces.send(event_line(self._error_event(error)))
        last = _DONE if self._says_done else b""
        await send({"type": "http.response.body", "body": last, "more_body": False})


def event_line(content: object) -> bytes:
    """The bytes of an event."""
    return b"".join((EVENT_HEAD, msgspec.json.encode(content), EVENT_TAIL))
