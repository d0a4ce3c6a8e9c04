"""The bounds of a websocket, over a fake transport."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import cast

import pytest
from starlette.types import Scope, Send
from uvicorn.protocols.utils import ClientDisconnected

from fake_transport import FakeTransport, uvicorn_parts
from punica_frontend.http import uvicorn_websocket
from punica_frontend.http.body_pieces import piece_writer
from punica_frontend.http.deadline import Deadline
from punica_frontend.http.uvicorn_websocket import SLICE_BYTES, GuardedWebSocket
from waits import DEADLINE_S, until

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.fixture
def transport() -> FakeTransport:
    return FakeTransport()


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


async def test_a_websocket_that_takes_nothing_is_closed_with_the_reason(
    websocket: GuardedWebSocket, transport: FakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uvicorn_websocket, "CLOSE_TIMEOUT_S", 0.001)
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
