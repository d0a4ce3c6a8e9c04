"""Clients that send all of a request before they read, and are refused meanwhile: over real sockets."""

import asyncio
import contextlib
import http.client
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fastapi import FastAPI

from https_files import HttpsFiles, write_https_files
from punica_frontend.dependencies import AppDependencies
from punica_frontend.http import uvicorn_http
from punica_frontend.http.http_server import http_server
from punica_frontend.http.uvicorn_server import EmbeddedServer
from punica_serve.links.https_context import server_context
from waits import DEADLINE_S, until

#: More than the buffers of both ends' kernels hold.
NUM_BYTES = 16 << 20


@pytest.fixture
def files(tmp_path: Path) -> HttpsFiles:
    return write_https_files(tmp_path / "tls")


@pytest.fixture(params=["http", "https"])
async def connection(
    request: pytest.FixtureRequest,
    app: FastAPI,
    dependencies: AppDependencies,
    listener: socket.socket,
    files: HttpsFiles,
) -> AsyncIterator[http.client.HTTPConnection]:
    """A client of a frontend."""
    host, port = listener.getsockname()
    tls = server_context(files.config) if request.param == "https" else None
    server = http_server(app, dependencies.metrics.num_cut, max_body_bytes=1 << 20, max_connections=50, tls=tls)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    if tls is None:
        client = http.client.HTTPConnection(host, port, timeout=DEADLINE_S)
    else:
        trusting = ssl.create_default_context(cafile=files.ca)
        client = http.client.HTTPSConnection(host, port, timeout=DEADLINE_S, context=trusting)
    try:
        await until(lambda: server.started)
        yield client
        client.close()
        await until(lambda: not server.server_state.connections)
    finally:
        server.should_exit = True
        await serving


async def test_a_client_that_closes_reads_the_refusal_of_a_long_body(
    connection: http.client.HTTPConnection, dependencies: AppDependencies
) -> None:
    def ask() -> int:
        # Nothing has this route, so nobody reads the body.
        connection.request("POST", "/nowhere", bytes(NUM_BYTES), {"Connection": "close"})
        return connection.getresponse().status

    assert await asyncio.to_thread(ask) == 404
    assert not dependencies.metrics.num_cut


async def test_what_is_no_request_is_told_so_however_long_it_is(
    connection: http.client.HTTPConnection, dependencies: AppDependencies
) -> None:
    def ask() -> int:
        connection.request("GET", "/health", headers={"X": "x" * NUM_BYTES})
        return connection.getresponse().status

    assert await asyncio.to_thread(ask) == 400
    assert not dependencies.metrics.num_cut


async def test_a_client_that_never_stops_sending_is_cut(
    server: EmbeddedServer,
    dependencies: AppDependencies,
    listener: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(uvicorn_http, "REST_TIMEOUT_S", 0.05)
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(b"POST /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1000000\r\n\r\n")
    async with asyncio.timeout(DEADLINE_S):
        said = await reader.read()  # to the end of the answers, which comes before the cut
        assert said.startswith(b"HTTP/1.1 404")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.001)
    await until(lambda: not server.server_state.connections)
    assert dependencies.metrics.num_cut == {"body_late": 1}
    writer.close()
