"""Clients that take nothing of their answers, over real sockets with small buffers."""

import asyncio
import itertools
import json
import logging
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from echo_cluster import EchoCluster
from punica_frontend.dependencies import AppDependencies
from punica_frontend.http import listener as listening
from punica_frontend.http import uvicorn_server
from punica_frontend.http.uvicorn_server import EmbeddedServer
from waits import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux cuts them")

Ask = Callable[[socket.socket, tuple[str, int]], Coroutine[Any, Any, Any]]

#: Less than a fourth of what any answer below is long.
BUFFER_BYTES = 2_048

BODY = {"prompt": "4", "ignore_eos": True, "logprobs": 1}


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    monkeypatch.setattr(listening, "SEND_TIMEOUT_S", 0.2)
    with listening.bind("127.0.0.1", 0) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        yield listener


@pytest.fixture
def peer() -> Iterator[socket.socket]:
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        peer.setblocking(False)
        yield peer


@pytest.fixture(autouse=True)
def endless(cluster: EchoCluster) -> None:
    """Answers that stop just before their end, with much to take until then."""
    cluster.answer = lambda request: itertools.repeat(5)
    cluster.pause_at = 60


async def ask_for_events(peer: socket.socket, address: tuple[str, int]) -> None:
    body = json.dumps({**BODY, "stream": True})
    head = f"POST /v1/generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    loop = asyncio.get_running_loop()
    await loop.sock_connect(peer, address)
    await loop.sock_sendall(peer, f"{head}\r\n\r\n{body}".encode())


async def ask_on_websocket(peer: socket.socket, address: tuple[str, int]) -> ClientConnection:
    await asyncio.get_running_loop().sock_connect(peer, address)
    host, port = address
    websocket = await connect(f"ws://{host}:{port}/v1/generate/stream", sock=peer, proxy=None)
    websocket.transport.pause_reading()
    for request_id in map(str, range(100)):
        await websocket.send(json.dumps({"op": "generate", "request_id": request_id, **BODY}))
    return websocket


async def leave(asked: ClientConnection | None) -> None:
    if asked:
        asked.transport.abort()
        await asked.wait_closed()


@pytest.mark.parametrize("ask", [ask_for_events, ask_on_websocket])
async def test_they_are_cut(
    ask: Ask,
    peer: socket.socket,
    server: EmbeddedServer,
    listener: socket.socket,
    cluster: EchoCluster,
    dependencies: AppDependencies,
) -> None:
    asked = await ask(peer, listener.getsockname())
    await until(lambda: cluster.live)
    await until(lambda: not cluster.live and not server.server_state.connections)
    assert len(cluster.cancelled) == len(cluster.requests)
    assert dependencies.metrics.num_cut == {"stalled": 1}
    await leave(asked)


@pytest.mark.parametrize("ask", [ask_for_events, ask_on_websocket])
async def test_the_servers_end_waits_for_them_no_longer_than_for_others(
    ask: Ask,
    peer: socket.socket,
    server: EmbeddedServer,
    listener: socket.socket,
    cluster: EchoCluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(uvicorn_server, "SHUTDOWN_TIMEOUT_S", 0.2)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000)
    asked = await ask(peer, listener.getsockname())
    await until(lambda: cluster.num_tokens >= 60)
    server.should_exit = True
    await until(lambda: not server.server_state.connections and not server.server_state.tasks)
    assert not cluster.live
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []
    await leave(asked)
