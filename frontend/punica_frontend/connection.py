"""Clients that leave, or that send too much."""

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

T = TypeVar("T")

#: Of an answer whose client has closed its connection: nobody reads it, it only shows in logs.
CLIENT_CLOSED = 499


async def run_while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """Awaits ``work``; None when the client left first, and ``work`` was cancelled for it.

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
#: A body of which nothing more has come for so long comes no more.
BODY_SILENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Of one route."""

    max_bytes: int
    timeout_s: float = BODY_TIMEOUT_S


class BodyLimit:
    """Refuses bodies of HTTP requests that are too long (413), before they are held in memory, too late (408) or
    compressed (415).

    FastAPI's own limit answers in plain text; here a refusal is an exception that becomes an answer like all others.
    """

    def __init__(self, app: ASGIApp, limits: BodyLimits, by_path: Mapping[str, BodyLimits]) -> None:
        """``limits`` are of all paths that ``by_path`` does not name."""
        self._app = app
        self._limits = limits
        self._by_path = by_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            limits = self._by_path.get(scope["path"], self._limits)
            receive = _limited(_plain(scope, receive), limits, num_announced=_content_length(scope))
        await self._app(scope, receive, send)


def _plain(scope: Scope, receive: Receive) -> Receive:
    """Gives the body as it comes, and of a compressed one nothing: what it holds could be far longer."""
    encoding = Headers(scope=scope).get("content-encoding", "identity")
    if encoding.lower() == "identity":
        return receive

    async def refuse() -> Message:
        raise HTTPException(415, f"compressed bodies are not taken: send it without Content-Encoding: {encoding[:100]}")

    return refuse


def _content_length(scope: Scope) -> int:
    """0 where the head does not say it."""
    return int(Headers(scope=scope).get("content-length", 0))


def _limited(receive: Receive, limits: BodyLimits, *, num_announced: int) -> Receive:
    loop = asyncio.get_running_loop()
    num_bytes, deadline_s = 0, loop.time() + limits.timeout_s
    is_complete = False
    too_long = HTTPException(413, f"the body is longer than {limits.max_bytes} bytes")

    async def receive_limited() -> Message:
        nonlocal num_bytes, is_complete
        if is_complete:  # whoever waits now waits for the client to leave
            return await receive()
        if num_announced > limits.max_bytes:  # none of it is waited for
            raise too_long
        try:
            async with asyncio.timeout_at(min(deadline_s, loop.time() + BODY_SILENCE_S)):
                message = await receive()
        except TimeoutError:
            late = f"the body did not come within {limits.timeout_s:g} s, or nothing of it for {BODY_SILENCE_S:g} s"
            raise HTTPException(408, late) from None
        is_complete = not message.get("more_body", False)
        num_bytes += len(message.get("body", b""))
        if num_bytes > limits.max_bytes:
            raise too_long
        return message

    return receive_limited
