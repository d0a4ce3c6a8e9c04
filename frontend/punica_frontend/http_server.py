"""The HTTP server round an application."""

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from punica_frontend.listener import BACKLOG
from punica_frontend.metrics.figures import Cut
from punica_frontend.protocols import GuardedHttp, GuardedWebSocket

#: For answers under way when the frontend is told to stop; connections that are still open then are cut.
SHUTDOWN_TIMEOUT_S = 2.0
#: Clients that keep a connection for their next request save a handshake.
KEEP_ALIVE_S = 75


class EmbeddedServer(uvicorn.Server):
    """A server whose signals are the caller's: it stops when its task is told to."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Cuts what is still open after SHUTDOWN_TIMEOUT_S: handlers see that and end, as with any client that left."""
        cutting = asyncio.get_running_loop().call_later(SHUTDOWN_TIMEOUT_S, self._cut_connections)
        try:
            await super().shutdown(sockets)
        finally:
            cutting.cancel()

    def _cut_connections(self) -> None:
        for connection in self.server_state.connections:
            connection.transport.abort()


def http_server(app: ASGIApp, num_cut: Counter[Cut], *, max_body_bytes: int, max_connections: int) -> EmbeddedServer:
    """The server of ``app``. It receives websocket frames of up to twice ``max_body_bytes``, for the app to refuse.

    ``num_cut`` counts the connections that it ends for their clients.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="error",  # its warnings are of clients' mistakes: whoever floods us would flood the log
        access_log=False,
        lifespan="off",
        http=cast(Any, partial(GuardedHttp, num_cut)),  # made by call alone, with keywords
        ws=cast(Any, partial(GuardedWebSocket, num_cut)),
        ws_max_size=2 * max_body_bytes,
        ws_per_message_deflate=False,
        limit_concurrency=max_connections,
        timeout_keep_alive=KEEP_ALIVE_S,
        backlog=BACKLOG,
    )
    return EmbeddedServer(config)
