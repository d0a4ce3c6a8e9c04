"""Handshakes of websockets that are none, on real sockets."""

import asyncio
import json
import socket

import pytest

from punica_frontend.http.uvicorn_server import EmbeddedServer
from waits import DEADLINE_S

GET = b"GET /v1/generate/stream HTTP/1.1\r\n"
UPGRADE = b"Host: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
KEY = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
VERSION = b"Sec-WebSocket-Version: 13\r\n"


async def answer(listener: socket.socket, head: bytes) -> tuple[bytes, bytes]:
    """The head and the body of all that comes until the connection is closed."""
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(head + b"\r\n")
    async with asyncio.timeout(DEADLINE_S):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return head, body


@pytest.mark.parametrize(
    ("head", "status", "code", "words"),
    [
        (GET + UPGRADE + VERSION, 400, "invalid_request", "missing Sec-WebSocket-Key"),
        (GET + UPGRADE + VERSION + b"Sec-WebSocket-Key: x\r\n", 400, "invalid_request", "Sec-WebSocket-Key"),
        (GET + UPGRADE + KEY + b"Sec-WebSocket-Version: 8\r\n", 400, "invalid_request", "Sec-WebSocket-Version"),
        (GET.replace(b"GET", b"POST") + UPGRADE + KEY + VERSION, 405, "method_not_allowed", "POST"),
        (GET + UPGRADE + KEY + VERSION + b"X: y\r\n" * 200, 431, "invalid_request", "no more than 128 headers"),
        (
            GET + UPGRADE + KEY + VERSION + b"X: " + b"y" * 9_000 + b"\r\n",
            431,
            "invalid_request",
            "header fields too large",
        ),
        (GET.replace(b"stream", b"y" * 9_000) + UPGRADE + KEY + VERSION, 414, "invalid_request", "too long"),
        (GET + UPGRADE + KEY + VERSION + b"Content-Length: 3\r\n", 400, "invalid_request", "request body"),
        (GET + UPGRADE + KEY + VERSION + b"Transfer-Encoding: chunked\r\n", 400, "invalid_request", "transfer coding"),
        (GET.replace(b"stream", b"nowhere") + UPGRADE + KEY + VERSION, 404, "route_not_found", "/v1/generate/nowhere"),
    ],
    ids=["no key", "key", "version", "method", "headers", "header", "target", "body", "coding", "path"],
)
async def test_an_invalid_handshake_is_refused_in_the_common_error_format(
    server: EmbeddedServer, listener: socket.socket, head: bytes, status: int, code: str, words: str
) -> None:
    first, body = await answer(listener, head)
    assert first.startswith(b"HTTP/1.1 %d " % status), first
    assert b"application/json" in first and b"plain" not in first
    error = json.loads(body)["error"]
    assert (error["code"], words in error["message"]) == (code, True), error
