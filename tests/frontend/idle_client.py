"""A process that holds idle websockets: `python idle_client.py PORT COUNT`.

Prints "holding" once all are open, and ends, and they with it, when its stdin does.
"""

import asyncio
import resource
import sys

HANDSHAKE = (
    b"GET /v1/generate/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
#: Opened at a time, so that the listener's backlog holds them.
BATCH = 200


#: First bytes of a frame: what it is, and of a client's, that it is masked.
PING, PONG, MASKED = 0x89, 0x8A, 0x80
NO_MASK = bytes(4)


class IdleSocket(asyncio.Protocol):
    """Asks for a websocket, and then says nothing but that it lives: it answers pings."""

    def __init__(self) -> None:
        self.is_open = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(HANDSHAKE)

    def data_received(self, data: bytes) -> None:
        if not self.is_open.done():
            self.is_open.set_result(data.startswith(b"HTTP/1.1 101"))
            return
        while data and data[0] == PING:
            length = data[1]
            self._transport.write(bytes((PONG, MASKED | length)) + NO_MASK + data[2 : 2 + length])
            data = data[2 + length :]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.is_open.done():
            self.is_open.set_result(False)


async def open_one(port: int) -> asyncio.BaseTransport:
    transport, protocol = await asyncio.get_running_loop().create_connection(IdleSocket, "127.0.0.1", port)
    assert await protocol.is_open
    return transport


async def hold(port: int, count: int) -> None:
    held: list[asyncio.BaseTransport] = []
    while len(held) < count:
        held += await asyncio.gather(*(open_one(port) for _ in range(min(BATCH, count - len(held)))))
    sys.stdout.write("holding\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(hold(int(sys.argv[1]), int(sys.argv[2])))
