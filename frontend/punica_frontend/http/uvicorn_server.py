"""A server on uvicorn's undocumented parts: its listening sockets, and its end."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

import uvicorn

#: How long answers have to finish when the frontend stops; open connections are then cut.
SHUTDOWN_TIMEOUT_S = 2.0
#: How long a client may take for its TLS handshake.
HANDSHAKE_TIMEOUT_S = 10.0


class EmbeddedServer(uvicorn.Server):
    """A server that leaves signals to its caller: it stops when ``should_exit`` is set."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Replaces uvicorn's, for listening sockets only, with a TLS handshake timeout shorter than its minute."""
        await self.lifespan.startup()
        config, loop = self.config, asyncio.get_running_loop()
        make: Callable[..., asyncio.Protocol] = config.http_protocol_class

        def make_protocol() -> asyncio.Protocol:
            return make(config=config, server_state=self.server_state, app_state=self.lifespan.state, _loop=loop)

        timeout_s = HANDSHAKE_TIMEOUT_S if config.ssl else None
        self.servers = [
            await loop.create_server(
                make_protocol, sock=listener, ssl=config.ssl, backlog=config.backlog, ssl_handshake_timeout=timeout_s
            )
            for listener in sockets or ()
        ]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Cuts connections still open after SHUTDOWN_TIMEOUT_S; their handlers end as if the client had left."""
        cutting = asyncio.get_running_loop().call_later(SHUTDOWN_TIMEOUT_S, self._cut_connections)
        try:
            await super().shutdown(sockets)
        finally:
            cutting.cancel()

    def _cut_connections(self) -> None:
        for connection in self.server_state.connections:
            connection.transport.abort()
