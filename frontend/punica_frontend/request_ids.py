"""Every request has an id: its client's X-Request-Id, or one made here. Its answer and its log lines carry it."""

import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from punica_frontend.request_spans import TRACEPARENT
from punica_serve.logs import REQUEST_ID

HEADER = "X-Request-Id"

#: What may stand in a header, a log line and a file name. Anything else is as if there were none.
_ACCEPTED = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class RequestIds:
    """An ASGI application round all others."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get(HEADER, "")
        request_id = given if _ACCEPTED.fullmatch(given) else secrets.token_hex(16)
        # Not reset: it is the request's own task, and who logs its failure does so at its very end.
        REQUEST_ID.set(request_id)
        TRACEPARENT.set(headers.get("traceparent"))

        async def send_with_id(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.accept", "websocket.http.response.start"):
                message.setdefault("headers", [])
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


def cluster_request_id() -> str:
    """Unique in the cluster, and begins with the id of the request that is being served: it may want several answers.

    A client that uses an id twice gets two of these.
    """
    return f"{REQUEST_ID.get() or 'gen'}-{secrets.token_hex(8)}"
