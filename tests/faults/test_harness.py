"""Those who watch are watched: the load sees every kind of wrong frame, and the proxy does to a link what it says."""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from process_tree import is_alive
from punica_faults.load import Load, Stream, _Client
from punica_faults.procs import KeptProcess
from punica_faults.proxy import Link
from punica_faults.references import Reference
from waits import DEADLINE_S, until

ANSWER = (5, 6, 7, 8)


def stream_at(num_tokens: int) -> Stream:
    reference = Reference("42", None, 0.0, 7, len(ANSWER), ANSWER)
    return Stream(reference, "frontend-0", num_tokens=num_tokens)


def frame(index: int, *token_ids: int, reason: str | None = None, error: Any = None) -> dict[str, Any]:
    return {"index": index, "token_ids": list(token_ids), "finish_reason": reason, "error": error}


def test_a_stream_that_goes_on_as_undisturbed_is_right() -> None:
    stream = stream_at(0)
    assert stream.accept(frame(0, 5), 1.0) is None
    assert stream.accept(frame(1, 6, 7), 2.0) is None
    assert stream.accept(frame(3, 8, reason="length"), 3.0) is None
    assert stream.has_ended


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (frame(1, 6), "goes on at 1 after 2"),
        (frame(3, 8), "goes on at 3 after 2"),
        (frame(2, 9), "differs"),
        (frame(2, 7, 8, 9), "differs"),
        (frame(2, 7, reason="length"), "ended as 'length' after 3 of 4"),
        (frame(2, 7, 8, reason="stop"), "ended as 'stop'"),
        (frame(2, reason="cancelled"), "ended as 'cancelled'"),
        (frame(2, reason="error", error={"message": "sorry"}), "failed after 2 tokens"),
    ],
)
def test_a_stream_that_does_not_is_a_problem(wrong: dict[str, Any], says: str) -> None:
    assert says in (stream_at(2).accept(wrong, 1.0) or "nothing")


def test_a_stream_may_end_early_only_for_a_client_who_cancelled_it() -> None:
    stream = stream_at(2)
    stream.is_cancelled = True
    assert stream.accept(frame(2, reason="cancelled"), 1.0) is None


def test_the_longest_stall_is_between_two_frames() -> None:
    stream = stream_at(0)
    stream.moved_s = 1.0
    for index, now_s in enumerate((2.0, 5.0, 5.5)):
        stream.accept(frame(index, ANSWER[index]), now_s)
    assert stream.longest_stall_s == 3.0


@pytest.mark.parametrize(("is_late", "num_tokens", "num_lost"), [(True, 0, 0), (True, 1, 1), (False, 0, 1)])
def test_a_frontend_that_leaves_owes_nothing_to_who_asked_after_it_refused_others(
    is_late: bool, num_tokens: int, num_lost: int
) -> None:
    load = Load({}, [], seed=0)
    client = _Client(load, "frontend-0", "ws://nobody", 1)
    stream = client._streams["r"] = stream_at(num_tokens)
    stream.is_late = is_late
    client._lose_streams("a plain close")
    assert stream.has_ended
    assert (load.num_lost, len(load.problems)) == (num_lost, num_lost)


class Echo:
    """A server that sends everything back, and one connection to it through a link."""

    def __init__(self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.link = link
        self.writer = writer
        self._reader = reader

    async def receive(self) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            return await self._reader.read(100)


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(100):
            writer.write(chunk)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, Link("link", server.sockets[0].getsockname()[1]).listening() as link:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        yield Echo(link, reader, writer)
        writer.close()


async def test_a_link_passes_everything(echo: Echo) -> None:
    echo.writer.write(b"one")
    assert await echo.receive() == b"one"


async def test_a_link_that_drops_gives_nothing_until_it_is_restored(echo: Echo) -> None:
    echo.link.drop()
    echo.writer.write(b"one")
    receiving = asyncio.create_task(echo.receive())
    done, _ = await asyncio.wait((receiving,), timeout=0.2)
    assert not done
    echo.link.restore()
    assert await receiving == b"one"


async def test_a_link_that_delays_keeps_the_order(echo: Echo) -> None:
    loop = asyncio.get_running_loop()
    echo.link.delay(0.1)
    started_s = loop.time()
    for chunk in (b"one ", b"two ", b"three"):
        echo.writer.write(chunk)
        await asyncio.sleep(0.01)
    received = b""
    while len(received) < len(b"one two three"):
        received += await echo.receive()
    assert received == b"one two three"
    assert loop.time() - started_s >= 0.2  # there and back


async def test_a_link_that_is_cut_breaks_connections_and_refuses_others(echo: Echo) -> None:
    await echo.link.cut()
    assert await ended(echo)
    reader, writer = await asyncio.open_connection("127.0.0.1", echo.link.port)
    assert await ended(Echo(echo.link, reader, writer))
    writer.close()
    echo.link.restore()
    reader, writer = await asyncio.open_connection("127.0.0.1", echo.link.port)
    writer.write(b"again")
    assert await Echo(echo.link, reader, writer).receive() == b"again"
    writer.close()


async def ended(echo: Echo) -> bool:
    try:
        return await echo.receive() == b""
    except ConnectionError:
        return True


async def test_a_wait_says_what_it_waited_for() -> None:
    with pytest.raises(AssertionError, match=r"the moon rises. It is new"):
        await until(lambda: False, "the moon rises", describe=lambda: "It is new", deadline_s=0.0)


async def test_a_client_cancelled_while_it_closes_leaves_no_connection_open() -> None:
    """It has more frames waiting than it takes, so it reads no more, and would not see the other side's end either."""

    async def flood(socket: ServerConnection) -> None:
        for _ in range(100):
            await socket.send(b"{}")
        await socket.wait_closed()

    class Stuck(_Client):
        async def _serve(self, socket: Any) -> None:
            await asyncio.sleep(DEADLINE_S)

    async with serve(flood, "127.0.0.1", 0, close_timeout=0.1) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        client = Stuck(Load({}, [], seed=0), "frontend-0", f"ws://127.0.0.1:{port}", 1)
        running = asyncio.create_task(client.run())
        await until(lambda: client._socket is not None and client._socket.recv_messages.paused, "it is flooded")
        assert client._socket is not None
        for _ in range(2):
            running.cancel()
            await asyncio.sleep(0.05)
        assert running.cancelled() and client._socket.transport.is_closing()


def _reaped(pid: int, _signum: int) -> None:
    raise ProcessLookupError(pid)


async def test_a_process_that_has_died_unnoticed_can_be_killed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is known to the thread that waits for it before the event loop hears of it."""
    command = (sys.executable, "-S", "-c", "import time; time.sleep(100)")
    read_end, write_end = os.pipe()
    process = KeptProcess("sleeper", command, {}, tmp_path / "log", read_end)
    keeping = asyncio.create_task(process.keep_running())
    await until(lambda: process.pid, "it runs")
    pid = process.pid
    process.kill()
    deadline_s = time.monotonic() + DEADLINE_S
    while is_alive(pid):  # the event loop must not turn
        assert time.monotonic() < deadline_s
        time.sleep(0.001)  # noqa: ASYNC251
    assert process.pid == pid
    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", _reaped)  # some versions of Python reap it in a thread
        process.kill()
    keeping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await keeping
    os.close(read_end)
    os.close(write_end)
    assert not process.unexpected_deaths
