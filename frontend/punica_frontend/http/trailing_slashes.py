"""Treats a path with a trailing slash like the path without it, and never redirects.

Clients join addresses carelessly, and many don't send a body again after a redirect.
"""

from starlette.types import ASGIApp, Receive, Scope, Send


class WithoutTrailingSlash:
    """An ASGI middleware outside everything that looks at paths. The root path keeps its slash."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            path = scope["path"]
            scope = {**scope, "path": path.removesuffix("/") or path}
        await self._app(scope, receive, send)
