"""Request ids: the client's X-Request-Id, or one made here. The answer and all log lines carry it."""

import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from punica_frontend.generation.request_spans import TRACEPARENT
from punica_serve.process.logs import REQUEST_ID

HEADER = "X-Request-Id"

#: Characters that are safe in headers, logs and file names. Other ids are replaced.
_ACCEPTED = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class RequestIds:
    """An ASGI middleware outside all others."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get(HEADER, "")
        request_id = given if _ACCEPTED.fullmatch(given) else secrets.token_hex(16)
        # Not reset: the task is the request's own, and a failure is logged at its very end.
        REQUEST_ID.set(request_id)
        TRACEPARENT.set(headers.get("traceparent"))

        async def send_with_id(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.accept", "websocket.http.response.start"):
                message.setdefault("headers", [])
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


def cluster_request_id() -> str:
    """Returns an id that is unique in the cluster and begins with the id of the current HTTP request.

    One HTTP request may need several, and a client that uses an id twice gets two.
    """
    return f"{REQUEST_ID.get() or 'gen'}-{secrets.token_hex(8)}"
