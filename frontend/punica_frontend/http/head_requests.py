"""HEAD requests, which load balancers and monitors send, are answered like GET without the body."""

from starlette.types import ASGIApp, Receive, Scope, Send


class HeadAsGet:
    """An ASGI middleware outside everything that looks at methods. The server omits the body itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)
