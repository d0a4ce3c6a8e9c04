"""Heads that are refused, on real sockets."""

import asyncio
import json
import socket

import pytest

from punica_frontend.http_server import EmbeddedServer
from punica_frontend.strict_http import MAX_HEADER_BYTES
from waits import DEADLINE_S

POST = b"POST /v1/generate HTTP/1.1\r\nHost: x\r\n"
NEXT = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


async def ask(listener: socket.socket, sent: bytes) -> tuple[bytes, bytes]:
    """The head and the rest of all that comes until the connection is closed."""
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(sent)
    async with asyncio.timeout(DEADLINE_S):
        head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return head, rest


@pytest.mark.parametrize(
    "sent",
    [
        POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + NEXT,
        POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + NEXT,
        b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"x" * MAX_HEADER_BYTES + b"\r\n\r\n",
        b"GET /health?" + b"x" * MAX_HEADER_BYTES + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"nonsense\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n",
    ],
    ids=["both lengths", "both lengths, the other way round", "header", "target", "no request", "no chunk"],
)
async def test_what_is_refused_ends_the_connection(
    server: EmbeddedServer, listener: socket.socket, sent: bytes
) -> None:
    head, body = await ask(listener, sent)
    assert head.startswith(b"HTTP/1.1 400 ") and b"application/json" in head
    error = json.loads(body)["error"]
    assert error["code"] == "invalid_request" and "both Content-Length and Transfer-Encoding" in error["message"]


async def test_a_long_head_within_the_limit(server: EmbeddedServer, listener: socket.socket) -> None:
    padding = b"x" * (MAX_HEADER_BYTES - 1_000)
    head, _ = await ask(
        listener, b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: " + padding + b"\r\n\r\n"
    )
    assert head.startswith(b"HTTP/1.1 200 ")
