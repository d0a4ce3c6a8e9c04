"""Frames arrive whole and in order however the stream is split, by the fast path or by the parser."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.frames import Frame, Opcode

from punica_serve.links.frame_stream import AcceptedSocket, DialledSocket, FrameSocket
from waits import DEADLINE_S

PAYLOADS = [bytes([size % 251]) * size for size in (0, 1, 125, 126, 127, 65_535, 65_536, 100_000)]


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[DialledSocket, AcceptedSocket]]:
    """Both ends of a link."""
    accepted: asyncio.Future[AcceptedSocket] = asyncio.get_running_loop().create_future()

    async def handle(connection: ServerConnection) -> None:
        assert isinstance(connection, AcceptedSocket)
        accepted.set_result(connection)
        await connection.wait_closed()

    async with serve(handle, "127.0.0.1", 0, create_connection=AcceptedSocket, compression=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with connect(
            f"ws://127.0.0.1:{port}", create_connection=DialledSocket, compression=None, proxy=None
        ) as client:
            assert isinstance(client, DialledSocket)
            yield client, await accepted


async def taken(socket: FrameSocket, num_messages: int) -> list[bytes]:
    """The next messages."""
    has_come = asyncio.Event()
    socket.on_frames = socket.on_end = has_come.set
    messages: list[bytes] = []
    while len(messages) < num_messages:
        if (message := socket.take()) is not None:
            messages.append(message)
        else:
            await has_come.wait()
            has_come.clear()
    return messages


async def test_frames_of_all_lengths_go_both_ways() -> None:
    async with connected() as (client, server), asyncio.timeout(DEADLINE_S):
        for one, other in ((client, server), (server, client)):
            for payload in PAYLOADS:
                one.write(payload)
                assert await taken(other, 1) == [payload]
            for payload in PAYLOADS:
                one.write(payload)
            assert await taken(other, len(PAYLOADS)) == PAYLOADS


def stream() -> Iterator[tuple[Opcode, bytes, bool]]:
    """A text, a message in two fragments, a ping between them, and whole binary frames around."""
    yield Opcode.BINARY, b"first", True
    yield Opcode.TEXT, b"text", True
    yield Opcode.BINARY, b"half ", False
    yield Opcode.PING, b"ping", True
    yield Opcode.CONT, b"and half", True
    yield Opcode.BINARY, b"last", True


@pytest.mark.parametrize("chunk_bytes", [1, 3, 7, 11, 1000])
@pytest.mark.parametrize("is_masked", [True, False])
async def test_any_split_of_the_stream_gives_the_same_messages(chunk_bytes: int, is_masked: bool) -> None:
    async with connected() as (client, server), asyncio.timeout(DEADLINE_S):
        receiver: FrameSocket = server if is_masked else client
        frames = [Frame(opcode, data, fin).serialize(mask=is_masked) for opcode, data, fin in stream()]
        for data in frames if chunk_bytes == 11 else [b"".join(frames)]:
            for start in range(0, len(data), chunk_bytes):
                receiver.data_received(data[start : start + chunk_bytes])
        assert await taken(receiver, 4) == [b"first", b"text", b"half and half", b"last"]


async def test_a_frame_with_the_wrong_masking_ends_the_link() -> None:
    async with connected() as (client, server), asyncio.timeout(DEADLINE_S):
        server.data_received(Frame(Opcode.BINARY, b"unmasked").serialize(mask=False))
        await client.wait_closed()
        assert client.close_code == 1002


@pytest.mark.parametrize("payload", [b"", b"x" * 126])
async def test_a_frame_that_ends_within_its_header_or_mask_waits_for_the_rest(payload: bytes) -> None:
    async with connected() as (_, server), asyncio.timeout(DEADLINE_S):
        frame = Frame(Opcode.BINARY, payload).serialize(mask=True)
        for cut in range(1, len(frame)):
            server.data_received(frame + frame[:cut])
            server.data_received(frame[cut:])
        num_frames = 2 * (len(frame) - 1)
        assert await taken(server, num_frames) == [payload] * num_frames
        assert server.take() is None  # resumes reading, as the closing handshake needs


async def test_reading_pauses_while_too_many_messages_wait_to_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("punica_serve.links.frame_stream.MAX_WAITING_FRAMES", 2)
    async with connected() as (client, server), asyncio.timeout(DEADLINE_S):
        payload = b"x" * 100_000
        num_sent = 0
        while server.transport.is_reading() or not client.is_paused:  # the kernel's buffers decide which is first
            if not client.is_paused:
                client.write(payload)
                num_sent += 1
            await asyncio.sleep(0)
        assert await taken(server, num_sent) == [payload] * num_sent
        assert server.take() is None
        assert server.transport.is_reading()


async def test_a_paused_writer_is_told_when_it_may_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("punica_serve.links.frame_stream.MAX_WAITING_FRAMES", 2)
    async with connected() as (client, server), asyncio.timeout(DEADLINE_S):
        is_writable = asyncio.Event()
        client.on_writable = is_writable.set
        num_sent = 0
        while not client.is_paused:
            client.write(b"x" * 100_000)
            num_sent += 1
            await asyncio.sleep(0)
        await taken(server, num_sent)
        await is_writable.wait()


async def test_messages_written_before_the_end_arrive_and_nothing_is_written_after_it() -> None:
    async with connected() as (client, server), asyncio.timeout(DEADLINE_S):
        client.write(b"last words")
        await client.close()
        client.write(b"never")
        assert await taken(server, 1) == [b"last words"]
        await server.wait_closed()
        assert server.has_ended and server.take() is None
