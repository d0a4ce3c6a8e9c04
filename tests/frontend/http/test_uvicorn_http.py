"""The bounds of an HTTP connection. Transports are fakes wherever it matters what a client takes."""

import asyncio
import contextlib
import socket
from collections import Counter
from functools import partial
from typing import cast

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from fake_transport import FakeTransport, uvicorn_parts
from punica_frontend.dependencies import AppDependencies
from punica_frontend.http import uvicorn_http
from punica_frontend.http.deadline import Deadline
from punica_frontend.http.uvicorn_http import GuardedHttp
from punica_frontend.http.uvicorn_server import EmbeddedServer
from waits import DEADLINE_S, until


@pytest.fixture
def transport() -> FakeTransport:
    return FakeTransport()


@pytest.fixture
async def http(transport: FakeTransport) -> GuardedHttp:
    protocol = GuardedHttp(Counter(), **uvicorn_parts())
    protocol.connection_made(cast(asyncio.Transport, transport))
    return protocol


async def test_a_head_has_a_deadline_and_a_request_under_way_has_none(http: GuardedHttp) -> None:
    assert http._head_deadline._timer is not None
    http.data_received(b"GET / HTTP/1.1\r\n")
    assert http._head_deadline._timer is not None
    http.data_received(b"Host: x\r\n\r\n")
    assert http._head_deadline._timer is None


async def test_a_head_that_trickles_is_cut(
    dependencies: AppDependencies, server: EmbeddedServer, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uvicorn_http, "HEAD_TIMEOUT_S", 0.5)  # which the first request must not take
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    # A first request that is served does not buy time for the second one's head.
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.write(b"GET /health HT")
    async with asyncio.timeout(DEADLINE_S):
        while not reader.at_eof():
            try:
                await reader.read(1_000)
            except ConnectionResetError:
                break
    await until(lambda: not server.server_state.connections)
    assert dependencies.metrics.num_cut == {"header_timeout": 1}
    writer.close()


async def test_an_answer_that_is_not_taken_is_cut(http: GuardedHttp, transport: FakeTransport) -> None:
    http.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    http._stall_deadline = Deadline(http.loop, 0.001, partial(http._cut, "stalled"))
    http.pause_writing()
    http.resume_writing()
    assert http._stall_deadline._timer is None
    http.pause_writing()
    await until(lambda: transport.is_aborted)
    assert http._num_cut == {"stalled": 1}
    for task in http.tasks:
        task.cancel()


async def test_a_client_beyond_the_limit_gets_503(server: EmbeddedServer, address: str) -> None:
    limit = server.config.limit_concurrency
    assert limit is not None
    host, port = address.split(":")
    held = [await asyncio.open_connection(host, int(port)) for _ in range(limit)]
    await until(lambda: len(server.server_state.connections) == limit)
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=60.0) as client:
        response = await client.get("/health")
        assert (response.status_code, response.headers["retry-after"]) == (503, "2")
        assert "as many connections as it can" in response.json()["error"]["message"]
        with pytest.raises(InvalidStatus, match="503"):
            await connect(f"ws://{address}/v1/generate/stream", proxy=None)
        held[0][1].close()
        await until(lambda: len(server.server_state.connections) < limit)
        assert (await client.get("/health")).status_code == 200
    for _, writer in held:
        writer.transport.abort()


async def test_connections_far_beyond_the_limit_are_cut(
    server: EmbeddedServer, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uvicorn_http, "MAX_REFUSALS", 0)
    limit = server.config.limit_concurrency
    assert limit is not None
    host, port = address.split(":")
    held = [await asyncio.open_connection(host, int(port)) for _ in range(limit)]
    await until(lambda: len(server.server_state.connections) == limit)
    reader, beyond = await asyncio.open_connection(host, int(port))
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(1), DEADLINE_S)
    for _, writer in [*held, (reader, beyond)]:
        writer.transport.abort()


async def test_a_body_that_comes_after_its_refusal_is_read_for_a_while_and_then_cut(
    server: EmbeddedServer, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uvicorn_http, "REST_TIMEOUT_S", 0.05)
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    # Nothing has this route, so nobody reads the body.
    writer.write(b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 404")
    async with asyncio.timeout(DEADLINE_S):
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b"x")
                await writer.drain()
                await reader.read(1_000)
    await until(lambda: not server.server_state.connections)
    writer.close()


async def test_a_connection_goes_on_once_the_body_of_a_refused_request_has_come(
    server: EmbeddedServer, listener: socket.socket
) -> None:
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 404")
    writer.write(b"abc" + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(DEADLINE_S):
        while b"HTTP/1.1 200" not in await reader.readline():
            pass
    writer.close()
