"""The bounds of one connection. Transports are fakes wherever it matters what a client takes."""

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, cast

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.server import ServerState
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from punica_frontend.dependencies import AppDependencies
from punica_frontend.http import uvicorn_private
from punica_frontend.http.body_pieces import piece_writer
from punica_frontend.http.deadline import Deadline
from punica_frontend.http.uvicorn_private import SLICE_BYTES, EmbeddedServer, GuardedHttp, GuardedWebSocket
from waits import DEADLINE_S, until

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


class FakeTransport:
    """A client that takes what it is told to take."""

    def __init__(self) -> None:
        self.written = b""
        self.is_reading = True
        self.is_closed = self.is_aborted = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_closed or self.is_aborted

    def get_extra_info(self, name: str) -> None:
        return None

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        pass

    def set_write_buffer_limits(self, high: int) -> None:
        pass


async def hold(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that holds what it gets."""
    await asyncio.Event().wait()


def uvicorn_parts() -> dict[str, Any]:
    """The arguments with which uvicorn creates a connection."""
    config = uvicorn.Config(hold, ws=GuardedWebSocket, ws_ping_interval=None, log_config=None, lifespan="off")
    config.load()
    return {"config": config, "server_state": ServerState(), "app_state": {}, "_loop": asyncio.get_running_loop()}


@pytest.fixture
def transport() -> FakeTransport:
    return FakeTransport()


@pytest.fixture
async def http(transport: FakeTransport) -> GuardedHttp:
    protocol = GuardedHttp(Counter(), **uvicorn_parts())
    protocol.connection_made(cast(asyncio.Transport, transport))
    return protocol


@pytest.fixture
async def websocket(transport: FakeTransport) -> AsyncIterator[GuardedWebSocket]:
    """Accepted."""
    protocol = GuardedWebSocket(Counter(), **uvicorn_parts())
    protocol.connection_made(cast(asyncio.Transport, transport))
    protocol.data_received(HANDSHAKE)
    await protocol.send({"type": "websocket.accept"})
    await asyncio.sleep(0)
    transport.written = b""
    yield protocol
    for task in protocol.tasks:
        task.cancel()


async def test_a_deadline_that_has_started_goes_on_where_it_was() -> None:
    fired = asyncio.Event()
    deadline = Deadline(asyncio.get_running_loop(), 0.001, fired.set)
    deadline.start()
    timer = deadline._timer
    deadline.start()
    assert deadline._timer is timer
    deadline.cancel()
    deadline.start()
    await asyncio.wait_for(fired.wait(), DEADLINE_S)


async def test_a_head_has_a_deadline_and_a_request_under_way_has_none(http: GuardedHttp) -> None:
    assert http._head_deadline._timer is not None
    http.data_received(b"GET / HTTP/1.1\r\n")
    assert http._head_deadline._timer is not None
    http.data_received(b"Host: x\r\n\r\n")
    assert http._head_deadline._timer is None


async def test_a_head_that_trickles_is_cut(
    dependencies: AppDependencies, server: EmbeddedServer, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uvicorn_private, "HEAD_TIMEOUT_S", 0.5)  # which the first request must not take
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


async def test_a_websocket_that_takes_nothing_is_closed_with_the_reason(
    websocket: GuardedWebSocket, transport: FakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uvicorn_private, "CLOSE_TIMEOUT_S", 0.001)
    websocket._stall_deadline = Deadline(websocket.loop, 0.001, websocket._end_stalled)
    websocket.pause_writing()
    blocked = asyncio.create_task(websocket.send({"type": "websocket.send", "text": "more"}))
    await until(lambda: transport.is_closed)
    content = (1008).to_bytes(2) + b"took nothing for 30 s"
    assert transport.written == bytes((0x88, len(content))) + content
    with pytest.raises(ClientDisconnected):
        await blocked
    assert (await websocket.receive())["type"] == "websocket.connect"
    assert (await websocket.receive())["type"] == "websocket.disconnect"
    await until(lambda: transport.is_aborted)


async def test_a_client_that_reads_in_time_is_not_cut(websocket: GuardedWebSocket) -> None:
    websocket.pause_writing()
    assert websocket._stall_deadline._timer is not None
    websocket.resume_writing()
    assert websocket._stall_deadline._timer is None


@pytest.mark.parametrize(
    ("num_bytes", "head"),
    [(125, b"\x81\x7d"), (126, b"\x81\x7e\x00\x7e"), (65_536, b"\x81\x7f\x00\x00\x00\x00\x00\x01\x00\x00")],
)
async def test_messages_of_one_turn_leave_together(
    websocket: GuardedWebSocket, transport: FakeTransport, num_bytes: int, head: bytes
) -> None:
    for _ in range(2):
        await websocket.send({"type": "websocket.send", "text": "x" * num_bytes})
    assert transport.written == b""
    await asyncio.sleep(0)
    assert transport.written == 2 * (head + b"x" * num_bytes)


async def test_a_websocket_takes_messages_at_once_while_it_is_open_and_its_client_reads(
    websocket: GuardedWebSocket, transport: FakeTransport
) -> None:
    messages = piece_writer(cast(Scope, websocket.scope), cast(Send, websocket.send))
    messages.write(b"one")
    await messages.send(b"two")
    await asyncio.sleep(0)
    assert transport.written == b"\x81\x03one\x81\x03two" and messages.is_writable
    websocket.pause_writing()
    assert not messages.is_writable
    blocked = asyncio.create_task(messages.send(b"three"))
    await asyncio.sleep(0)
    assert not blocked.done()
    websocket.resume_writing()
    await blocked
    await websocket.send({"type": "websocket.close", "code": 1000})
    assert not messages.is_writable
    with pytest.raises(ClientDisconnected):
        await messages.send(b"four")


EMPTY_TEXT, PING = b"\x81\x80\0\0\0\0", b"\x89\x80\0\0\0\0"


async def test_a_flood_of_messages_is_taken_a_slice_at_a_time(
    websocket: GuardedWebSocket, transport: FakeTransport
) -> None:
    num_messages = 3 * SLICE_BYTES // len(EMPTY_TEXT)
    assert (await websocket.receive())["type"] == "websocket.connect"
    websocket.data_received(EMPTY_TEXT * num_messages)
    highest = 0
    for _ in range(num_messages):
        highest = max(highest, websocket.queue.qsize())
        assert not transport.is_reading
        assert await asyncio.wait_for(websocket.receive(), DEADLINE_S) == {"type": "websocket.receive", "text": ""}
    assert highest <= SLICE_BYTES // len(EMPTY_TEXT) + 1  # a message may begin in the slice before
    assert transport.is_reading


@pytest.mark.parametrize("is_early", [True, False])
async def test_a_websocket_that_was_closed_ends_with_the_clients_close(
    websocket: GuardedWebSocket, transport: FakeTransport, is_early: bool
) -> None:
    """Holds for anything that the client sent before, though nobody takes messages any more."""
    sent = EMPTY_TEXT * SLICE_BYTES + b"\x88\x82\0\0\0\0" + (1008).to_bytes(2)
    if is_early:
        websocket.data_received(sent)
    await websocket.send({"type": "websocket.close", "code": 1008, "reason": "no"})
    assert not transport.is_closed
    if not is_early:
        websocket.data_received(sent)
    await until(lambda: transport.is_closed)
    assert websocket.close_timer is None
    assert transport.written == b"\x88\x04" + (1008).to_bytes(2) + b"no"


async def test_pings_of_a_client_that_takes_no_answers_are_not_read(
    websocket: GuardedWebSocket, transport: FakeTransport
) -> None:
    num_pings = 2 * SLICE_BYTES // len(PING)
    assert (await websocket.receive())["type"] == "websocket.connect"
    websocket.pause_writing()
    websocket.data_received(PING * num_pings)
    for _ in range(10):
        await asyncio.sleep(0)
    assert transport.written == b"" and not transport.is_reading
    websocket.resume_writing()
    await until(lambda: len(transport.written) == 2 * num_pings)
    assert transport.is_reading


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
    monkeypatch.setattr(uvicorn_private, "MAX_REFUSALS", 0)
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
    monkeypatch.setattr(uvicorn_private, "REST_TIMEOUT_S", 0.05)
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
