"""A process of clients: `python -m punica_serve.bench.frontend.clients PORT SOCKETS REQUESTS MAX_TOKENS`.

Implements websockets by hand: it sends requests and then discards all it receives, to take little of the machine that
the frontend is measured on. It ends when the frontend does.
"""

import asyncio
import json
import sys

_HANDSHAKE = (
    b"GET /v1/generate/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
_READ_BYTES = 1 << 20
_RETRY_S = 0.1


def _masked(text: bytes) -> bytes:
    """A client's websocket message of 126 to 65,535 bytes (RFC 6455, section 5.2), masked with zeros."""
    return b"\x81\xfe" + len(text).to_bytes(2) + bytes(4) + text


def _ask(number: int, max_tokens: int) -> bytes:
    frame = {"op": "generate", "request_id": str(number), "prompt": "42", "max_tokens": max_tokens, "ignore_eos": True}
    return _masked(json.dumps(frame).ljust(126).encode())


async def _connection(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:  # the frontend has not started yet; our parent has a deadline
            await asyncio.sleep(_RETRY_S)


async def _hold(port: int, num_requests: int, max_tokens: int) -> None:
    reader, writer = await _connection(port)
    writer.write(_HANDSHAKE)
    await reader.readuntil(b"\r\n\r\n")
    writer.writelines(_ask(number, max_tokens) for number in range(num_requests))
    while await reader.read(_READ_BYTES):
        pass


async def _run(port: int, num_sockets: int, num_requests: int, max_tokens: int) -> None:
    await asyncio.gather(*(_hold(port, num_requests, max_tokens) for _ in range(num_sockets)))


if __name__ == "__main__":
    asyncio.run(_run(*map(int, sys.argv[1:])))
