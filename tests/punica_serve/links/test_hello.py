import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import connect

from backoff_spy import note_lives
from punica_serve.bench.free_ports import free_port
from punica_serve.errors import ClusterUnavailable, ConfigError
from punica_serve.links import hello as wire
from punica_serve.links.channel import Channel
from punica_serve.links.channel_state import ChannelState
from punica_serve.protocol import (
    PROTOCOL_VERSION,
    CancelRequest,
    FrontendHello,
    GetCluster,
    Limits,
    RunnerHello,
    SchedulerToFrontend,
    ToScheduler,
    Welcome,
    encode,
    join,
)
from waits import DEADLINE_S, until

TOKEN = "cluster token"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "RECONNECT_FIRST_S", 0.01)
    monkeypatch.setattr(wire, "RECONNECT_HIGHEST_S", 0.05)
    # A busy machine cuts off no peer that is late with its half of a close: that would lose the reason.
    monkeypatch.setattr("punica_serve.links.channel.CLOSE_TIMEOUT_S", DEADLINE_S)
    monkeypatch.setitem(wire._SOCKET_OPTIONS, "close_timeout", DEADLINE_S)


def hello(version: tuple[int, int] = PROTOCOL_VERSION, token: str = TOKEN) -> FrontendHello:
    return FrontendHello(version, token, "frontend")


def unexpected(message: Any) -> None:
    raise AssertionError(message)


async def echo_limits(channel: Channel) -> None:
    """A scheduler that answers GetCluster(n) with Limits of n GPUs."""
    await wire.accept(channel, token=TOKEN, incarnation=7)

    def answer(message: Any) -> None:
        if isinstance(message, GetCluster):
            channel.send(Limits(message.call_id))

    await channel.serve(answer)


@asynccontextmanager
async def scheduler(session: Callable[[Channel], Awaitable[None]] = echo_limits, port: int = 0) -> AsyncIterator[str]:
    async with wire.listen("127.0.0.1", port, ToScheduler, session) as port:
        yield f"ws://127.0.0.1:{port}"


async def test_messages_go_both_ways_in_order() -> None:
    async with scheduler() as url, wire.dial(url, hello(), SchedulerToFrontend) as (channel, welcome):
        assert welcome == Welcome(PROTOCOL_VERSION, 7)
        for i in range(500):
            channel.send(GetCluster(i))
        assert [await channel.receive(DEADLINE_S) for _ in range(500)] == [Limits(i) for i in range(500)]


async def test_messages_sent_before_a_close_still_arrive() -> None:
    got: list[Any] = []

    async def collect(channel: Channel) -> None:
        await wire.accept(channel, token=TOKEN, incarnation=7)
        await channel.serve(got.append)

    async with scheduler(collect) as url:
        async with wire.dial(url, hello(), SchedulerToFrontend) as (channel, _):
            for i in range(100):
                channel.send(CancelRequest(str(i)))
        channel.send(CancelRequest("after the end"))
    assert got == [CancelRequest(str(i)) for i in range(100)]


async def test_the_end_of_a_link_ends_the_iteration_with_a_reason() -> None:
    async def leave(channel: Channel) -> None:
        await wire.accept(channel, token=TOKEN, incarnation=7)
        await channel.close("enough")

    async with scheduler(leave) as url, wire.dial(url, hello(), SchedulerToFrontend) as (channel, _):
        await channel.serve(unexpected)
        assert channel.end_reason == "closed with code 1000 enough"


async def test_a_broken_frame_ends_its_own_link_only(caplog: pytest.LogCaptureFixture) -> None:
    async with scheduler() as url, wire.dial(url, hello(), SchedulerToFrontend) as (channel, _):
        async with connect(url) as broken:
            await broken.send(b"\x00garbage")
            await broken.wait_closed()
            assert "no message of this direction" in (broken.close_reason or "")
        channel.send(GetCluster(3))
        assert await channel.receive(DEADLINE_S) == Limits(3)
    assert "cut the link from" in caplog.text


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (hello(token="guess"), "cluster token is not the scheduler's"),
        (hello(version=(9, 3)), r"speaks protocol 9\.3, the scheduler {}\.{}".format(*PROTOCOL_VERSION)),
    ],
)
async def test_a_wrong_hello_is_refused_with_the_reason(wrong: FrontendHello, message: str) -> None:
    async with scheduler() as url:
        with pytest.raises(wire.HandshakeRefused, match=message):
            async with wire.dial(url, wrong, SchedulerToFrontend):
                pass


async def test_another_minor_version_is_welcome() -> None:
    version = (PROTOCOL_VERSION[0], PROTOCOL_VERSION[1] + 1)
    async with (
        scheduler() as url,
        wire.dial(url, RunnerHello(version, TOKEN, "r", "i"), SchedulerToFrontend) as (_, welcome),
    ):
        assert welcome.incarnation == 7


async def test_a_link_that_starts_with_no_hello_is_closed() -> None:
    async with scheduler() as url, connect(url) as socket:
        await socket.send(join([encode(GetCluster(1))]))
        await socket.wait_closed()
        assert "must start with a hello, not with GetCluster" in (socket.close_reason or "")


async def test_a_link_that_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "HANDSHAKE_TIMEOUT_S", 0.05)
    async with scheduler() as url, connect(url) as socket:
        await socket.wait_closed()
        assert "sent nothing for 0.05 s" in (socket.close_reason or "")


async def test_dialling_nobody_names_the_url() -> None:
    async with scheduler() as url:
        pass
    with pytest.raises(ClusterUnavailable, match=f"scheduler at {url} can't be reached: Connection refused"):
        async with wire.dial(url, hello(), SchedulerToFrontend):
            pass


@pytest.mark.parametrize("url", ["http://scheduler", "scheduler:8100", "ws://scheduler:port", "ws://scheduler:99999"])
async def test_an_invalid_url_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError, match="not of the form ws://HOST:PORT"):
        await wire.keep_dialling(url, hello, SchedulerToFrontend, lambda *_: asyncio.sleep(0))


async def test_a_port_in_use_is_a_config_error() -> None:
    async with scheduler() as url:
        with pytest.raises(ConfigError, match=r"can't listen on 127\.0\.0\.1:\d+: Address already in use"):
            async with scheduler(port=int(url.rpartition(":")[2])):
                pass


@asynccontextmanager
async def dialler(url: str, token: str = TOKEN, welcomes: list[Welcome] | None = None) -> AsyncIterator[list[Welcome]]:
    """A peer that keeps dialling; yields the list of its welcomes."""
    welcomes = [] if welcomes is None else welcomes

    async def session(channel: Channel, welcome: Welcome) -> None:
        welcomes.append(welcome)
        await channel.serve(lambda _: None)

    task = asyncio.create_task(wire.keep_dialling(url, lambda: hello(token=token), SchedulerToFrontend, session))
    try:
        yield welcomes
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled(), task


async def test_keep_dialling_reconnects_after_every_loss_and_logs_each_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, wire.__name__)

    def logged(level: int) -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno == level]

    port = free_port()
    url = f"ws://127.0.0.1:{port}"
    async with dialler(url) as welcomes:
        for i in range(3):
            await until(lambda num=2 * i + 1: len(logged(logging.WARNING)) == num)  # type: ignore[misc]
            await asyncio.sleep(0.15)  # several failed attempts
            async with scheduler(port=port):
                await until(lambda num=i + 1: len(welcomes) == num)  # type: ignore[misc]
        await until(lambda: len(logged(logging.WARNING)) == 7)
    first, *losses = logged(logging.WARNING)[::2]
    assert first.startswith(f"the scheduler at {url} can't be reached")
    assert all(loss.startswith(f"lost the link to the scheduler at {url}: closed with code 1001") for loss in losses)
    assert logged(logging.WARNING)[1::2] == [f"connected to the scheduler at {url}"] * 3


async def test_only_the_time_of_an_open_link_resets_the_backoff(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = note_lives(monkeypatch)
    greeted: list[Welcome] = []

    async def leave(channel: Channel) -> None:
        await wire.accept(channel, token=TOKEN, incarnation=7)
        await until(lambda: greeted)
        await asyncio.sleep(0.1)

    async def hang(channel: Channel) -> None:
        await asyncio.sleep(0.1)

    async with scheduler(leave) as url, dialler(url, welcomes=greeted):
        await until(lambda: lives)
    assert lives[0] > 0.05
    lives.clear()
    async with scheduler(hang) as url, dialler(url):
        await until(lambda: lives)
    assert lives[0] == 0.0


async def test_keep_dialling_survives_a_scheduler_of_broken_frames() -> None:
    greeted: list[Welcome] = []

    async def garbage(channel: Channel) -> None:
        num_before = len(greeted)
        await wire.accept(channel, token=TOKEN, incarnation=7)
        await until(lambda: len(greeted) > num_before or channel.state is not ChannelState.OPEN)
        channel.send(CancelRequest("not for frontends"))
        await channel.serve(lambda _: None)

    async with scheduler(garbage) as url, dialler(url, welcomes=greeted):
        await until(lambda: len(greeted) >= 3)


async def test_keep_dialling_says_once_why_it_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    hellos = 0

    async def refuse(channel: Channel) -> None:
        nonlocal hellos
        hellos += 1
        await wire.accept(channel, token=TOKEN, incarnation=7)

    async with scheduler(refuse) as url, dialler(url, token="guess") as welcomes:
        await until(lambda: hellos >= 3)
    assert not welcomes
    assert sum("refused us: the peer's cluster token" in record.getMessage() for record in caplog.records) == 1


async def test_an_error_of_the_session_is_raised() -> None:
    async def broken(_: Channel, __: Welcome) -> None:
        raise RuntimeError("our bug")

    async with scheduler() as url:
        with pytest.raises(RuntimeError, match="our bug"):
            await wire.keep_dialling(url, hello, SchedulerToFrontend, broken)
