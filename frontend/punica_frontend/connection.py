"""Clients that leave, or that send too much."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

T = TypeVar("T")


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


class BodyLimit:
    """Refuses bodies of HTTP requests that are too long (413), before they are held in memory, or too late (408).

    FastAPI's own limit answers in plain text; here a refusal is an exception that becomes an answer like all others.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        num_bytes, deadline_s = 0, asyncio.get_running_loop().time() + BODY_TIMEOUT_S
        is_complete = False

        async def receive_limited() -> Message:
            nonlocal num_bytes, is_complete
            if is_complete:  # whoever waits now waits for the client to leave
                return await receive()
            try:
                async with asyncio.timeout_at(deadline_s):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"the body did not come within {BODY_TIMEOUT_S:g} s") from None
            is_complete = not message.get("more_body", False)
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_bytes:
                raise HTTPException(413, f"the body is longer than {self._max_bytes} bytes")
            return message

        await self._app(scope, receive_limited, send)
