"""Clients that leave or send too much."""

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from punica_serve.store.pace import MinRate, Pace

T = TypeVar("T")

#: The status after a client closed its connection: nobody receives it, it only shows in logs.
CLIENT_CLOSED = 499


async def run_while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """Awaits ``work``. If the client leaves first, cancels it and returns None.

    The request's body must have been read.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.wait((working, watching))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


#: From the head of an HTTP request to the end of its body.
BODY_TIMEOUT_S = 60.0
#: How long a body may pause.
BODY_SILENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """The limits of a route's bodies."""

    max_bytes: int
    timeout_s: float = BODY_TIMEOUT_S
    #: For long bodies.
    min_rate: MinRate | None = None

    def late(self) -> HTTPException:
        """Returns the error for a body that arrives too slowly."""
        message = f"the body did not arrive within {self.timeout_s:g} s, or paused for {BODY_SILENCE_S:g} s"
        rate = f", or came at less than {self.min_rate}" if self.min_rate else ""
        return HTTPException(408, f"{message}{rate}; send it again over a faster connection")


class BodyLimit:
    """Refuses HTTP bodies that are too long (413), too slow (408) or compressed (415), before they fill memory.

    FastAPI's own limit answers in plain text. Here a refusal is an exception, answered like all others.
    """

    def __init__(self, app: ASGIApp, limits: BodyLimits, by_path: Mapping[str, BodyLimits]) -> None:
        """``limits`` apply to all paths that are not in ``by_path``."""
        self._app = app
        self._limits = limits
        self._by_path = by_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            limits = self._by_path.get(scope["path"], self._limits)
            receive = _limited(_plain(scope, receive), limits, num_announced=_content_length(scope))
        await self._app(scope, receive, send)


def _plain(scope: Scope, receive: Receive) -> Receive:
    """Passes a plain body on, and refuses a compressed one: its content could be far longer."""
    encoding = Headers(scope=scope).get("content-encoding", "identity")
    if encoding.lower() == "identity":
        return receive

    async def refuse() -> Message:
        raise HTTPException(
            415, f"compressed bodies are not supported: send it without Content-Encoding: {encoding[:100]}"
        )

    return refuse


def _content_length(scope: Scope) -> int:
    """Returns 0 if the head does not say."""
    return int(Headers(scope=scope).get("content-length", 0))


def _limited(receive: Receive, limits: BodyLimits, *, num_announced: int) -> Receive:
    loop = asyncio.get_running_loop()
    num_bytes, deadline_s = 0, loop.time() + limits.timeout_s
    pace = Pace(limits.min_rate) if limits.min_rate else None
    is_complete = False
    too_long = HTTPException(413, f"the body is longer than {limits.max_bytes} bytes")

    async def receive_limited() -> Message:
        nonlocal num_bytes, is_complete
        if is_complete:  # a caller now waits for the disconnect
            return await receive()
        if num_announced > limits.max_bytes:  # refused before any of it arrives
            raise too_long
        began_s = loop.time()
        patience_s = min(BODY_SILENCE_S, pace.patience_s) if pace else BODY_SILENCE_S
        try:
            async with asyncio.timeout_at(min(deadline_s, began_s + patience_s)):
                message = await receive()
        except TimeoutError:
            raise limits.late() from None
        is_complete = not message.get("more_body", False)
        num_received = len(message.get("body", b""))
        if pace:
            pace.note(loop.time() - began_s, num_received)
        num_bytes += num_received
        if num_bytes > limits.max_bytes:
            raise too_long
        return message

    return receive_limited
