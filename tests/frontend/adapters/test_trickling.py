"""Uploads that trickle, over sockets: they are refused, cut and forgotten, and hold nobody up meanwhile."""

import asyncio
import socket
import time
from pathlib import Path

import pytest

from punica_frontend import app
from punica_frontend.dependencies import AppDependencies
from punica_frontend.http import uvicorn_http
from punica_frontend.http.uvicorn_server import EmbeddedServer
from punica_serve.store.pace import MinRate
from waits import DEADLINE_S

HEAD = (
    b"POST /v1/adapters?name=slow HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-tar\r\n"
    b"Content-Length: 1000000\r\n\r\n"
)


@pytest.fixture
def dependencies(dependencies: AppDependencies, monkeypatch: pytest.MonkeyPatch) -> AppDependencies:
    """Uploads must come at 10 KiB/s in each fifth of a second."""
    monkeypatch.setattr(app, "MinRate", lambda: MinRate(10 << 10, 0.2))
    monkeypatch.setattr(uvicorn_http, "REST_TIMEOUT_S", 0.2)
    return dependencies


async def trickle(address: tuple[str, int]) -> tuple[bytes, float]:
    """Returns the frontend's bytes until it cuts the connection, and the seconds until then."""
    reader, writer = await asyncio.open_connection(*address)
    began_s = time.monotonic()

    async def send() -> None:
        writer.write(HEAD)
        while not writer.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.02)

    sending = asyncio.create_task(send())
    said = b""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while piece := await reader.read(1 << 16):
                said += piece
    except ConnectionError:  # it was cut while a byte was on its way
        pass
    finally:
        sending.cancel()
        writer.transport.abort()
    return said, time.monotonic() - began_s


async def test_an_upload_that_trickles_is_408_cut_and_leaves_nothing(
    server: EmbeddedServer, listener: socket.socket, dependencies: AppDependencies
) -> None:
    answers = await asyncio.gather(*(trickle(listener.getsockname()) for _ in range(3)))
    for said, took_s in answers:
        assert said.startswith(b"HTTP/1.1 408"), said
        assert b'"code":"request_timeout"' in said and b"less than 10 KiB/s over 0.2 s" in said
        assert 0.2 <= took_s < 10.0, "soon after the window, and not when the whole time is over"
    (own,) = (Path(dependencies.config.data_folder) / "staging").iterdir()
    assert not list(own.iterdir())
