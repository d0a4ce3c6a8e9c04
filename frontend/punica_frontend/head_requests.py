"""HEAD is answered as GET is, without the body: balancers and monitors ask so."""

from starlette.types import ASGIApp, Receive, Scope, Send


class HeadAsGet:
    """An ASGI middleware before all that looks at methods. The server keeps the body of such an answer back."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)
