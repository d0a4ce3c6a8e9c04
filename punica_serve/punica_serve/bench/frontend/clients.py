"""A process of clients: `python -m punica_serve.bench.frontend.clients API PORT SOCKETS REQUESTS MAX_TOKENS`.

Implements both APIs by hand: it sends requests and then discards all it receives, to take little of the machine that
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


def _post(max_tokens: int) -> bytes:
    body = json.dumps({"prompt": "42", "max_tokens": max_tokens, "ignore_eos": True, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def _hold_socket(port: int, num_requests: int, max_tokens: int) -> None:
    reader, writer = await _connection(port)
    writer.write(_HANDSHAKE)
    await reader.readuntil(b"\r\n\r\n")
    writer.writelines(_ask(number, max_tokens) for number in range(num_requests))
    await _discard(reader)


async def _hold_stream(port: int, max_tokens: int) -> None:
    reader, writer = await _connection(port)
    writer.write(_post(max_tokens))
    await _discard(reader)


async def _discard(reader: asyncio.StreamReader) -> None:
    while await reader.read(_READ_BYTES):
        pass


async def _run(api: str, port: int, num_sockets: int, num_requests: int, max_tokens: int) -> None:
    """A websocket has all its requests; each stream of server-sent events has a connection of its own."""
    if api == "websocket":
        await asyncio.gather(*(_hold_socket(port, num_requests, max_tokens) for _ in range(num_sockets)))
    else:
        await asyncio.gather(*(_hold_stream(port, max_tokens) for _ in range(num_sockets * num_requests)))


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], *map(int, sys.argv[2:])))
