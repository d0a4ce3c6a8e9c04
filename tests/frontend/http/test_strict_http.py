"""Heads that are refused, on real sockets."""

import asyncio
import json
import socket

import h11
import pytest

from punica_frontend.http.strict_http import MAX_HEADER_BYTES, StrictConnection
from punica_frontend.http.uvicorn_server import EmbeddedServer
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
        b"X" * (MAX_HEADER_BYTES + 1) + b" /health HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET ftp://x/health HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://me@x/health HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http:///health HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET health HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=[
        "both lengths",
        "both lengths, the other way round",
        "header",
        "target",
        "no request",
        "no chunk",
        "method",
        "another scheme",
        "a user's name",
        "no authority",
        "no path",
        "a proxy's method",
    ],
)
async def test_a_refused_head_ends_the_connection(server: EmbeddedServer, listener: socket.socket, sent: bytes) -> None:
    head, body = await ask(listener, sent)
    assert head.startswith(b"HTTP/1.1 400 ") and b"application/json" in head
    error = json.loads(body)["error"]
    assert error["code"] == "invalid_request" and "both Content-Length and Transfer-Encoding" in error["message"]


@pytest.mark.parametrize("hosts", [b"", b"Host: x\r\nHost: x\r\n"], ids=["none", "two"])
async def test_a_head_with_another_number_of_hosts_than_one_is_told_so(
    server: EmbeddedServer, listener: socket.socket, hosts: bytes
) -> None:
    head, body = await ask(listener, b"GET /health HTTP/1.1\r\n" + hosts + b"\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert "lacks a Host header or has several" in json.loads(body)["error"]["message"]


async def test_a_long_head_within_the_limit(server: EmbeddedServer, listener: socket.socket) -> None:
    padding = b"x" * (MAX_HEADER_BYTES - 1_000)
    head, _ = await ask(
        listener, b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: " + padding + b"\r\n\r\n"
    )
    assert head.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("version", [b"0.9", b"1.2", b"2.0", b"3.7", b"9.9"])
async def test_an_unknown_version_is_refused(server: EmbeddedServer, listener: socket.socket, version: bytes) -> None:
    head, body = await ask(listener, b"GET /health HTTP/" + version + b"\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 505 HTTP Version Not Supported") and b"application/json" in head
    error = json.loads(body)["error"]
    assert error["code"] == "invalid_request" and "HTTP/1.1 and HTTP/1.0" in error["message"]


async def test_a_client_of_http_2_learns_which_versions_are_supported(
    server: EmbeddedServer, listener: socket.socket
) -> None:
    head, body = await ask(listener, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 505 ") and "HTTP/1.1" in json.loads(body)["error"]["message"]


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (b"http://other.example/health", 200),
        (b"HTTP://other.example:8000/health?x=1", 200),
        (b"https://other.example/health", 200),
        (b"http://other.example/nowhere", 404),
        (b"http://other.example", 307),
        (b"http://other.example?x=1", 307),
    ],
)
async def test_a_target_may_name_its_host(
    server: EmbeddedServer, listener: socket.socket, target: bytes, status: int
) -> None:
    head, body = await ask(listener, b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), (head, body)
    assert b"other.example" not in head + body


async def test_the_host_of_a_target_overrules_the_header(server: EmbeddedServer, listener: socket.socket) -> None:
    """A login is for pages of the host that the request is for, which is the target's."""

    async def login(target: bytes, host: bytes) -> tuple[bytes, bytes]:
        lines = (
            b"POST %s HTTP/1.1" % target,
            b"Host: %s" % host,
            b"Origin: http://a.example",
            b"Connection: close",
            b"Content-Type: application/json",
            b"Content-Length: 11",
        )
        return await ask(listener, b"\r\n".join(lines) + b'\r\n\r\n{"key":"x"}')

    head, body = await login(b"http://a.example/v1/login", b"b.example")
    assert head.startswith(b"HTTP/1.1 401 "), (head, body)
    head, body = await login(b"http://b.example/v1/login", b"a.example")
    assert head.startswith(b"HTTP/1.1 403 ") and b"b.example" in body


def sent_by(connection: h11.Connection, head: bytes, headers: list[tuple[bytes, bytes]]) -> list[bytes | None]:
    """Bytes that a connection sends for two answers of three pieces each, on requests that begin with this head."""
    sent = []
    for _ in range(2):
        connection.receive_data(head + b"Host: x\r\n\r\n")
        while not isinstance(connection.next_event(), h11.EndOfMessage):
            pass
        pieces = (b"", b"", b"") if head.startswith(b"HEAD") else (b"abcdef", b"", b"xyz" * 20)
        body = [h11.Data(data=piece) for piece in pieces]
        events: list[h11.Event] = [h11.Response(status_code=200, headers=headers), *body, h11.EndOfMessage()]
        sent += [connection.send(event) for event in events]
        if connection.our_state is not h11.DONE:
            break
        connection.start_next_cycle()
    return sent


@pytest.mark.parametrize("head", [b"GET / HTTP/1.1\r\n", b"HEAD / HTTP/1.1\r\n", b"GET / HTTP/1.0\r\n"])
@pytest.mark.parametrize("headers", [[], [(b"content-length", b"66")]])
def test_a_streams_pieces_are_framed_as_h11_frames_them(head: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    assert sent_by(StrictConnection(), head, headers) == sent_by(h11.Connection(h11.SERVER), head, headers)
