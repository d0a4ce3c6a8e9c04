"""A channel over a socket that the test holds: what leaves in which frames, and what ends it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from websockets.frames import CloseCode

from fake_socket import FakeSocket
from punica_serve import channel as channel_module
from punica_serve.channel import Channel
from punica_serve.config import LinksConfig
from punica_serve.errors import ProtocolError
from punica_serve.protocol import (
    CallReply,
    CancelRequest,
    GetCluster,
    Heartbeat,
    Limits,
    SchedulerToFrontend,
    WireError,
    encode,
    join,
)
from waits import DEADLINE_S, until


@pytest.fixture
def socket() -> FakeSocket:
    return FakeSocket()


@pytest.fixture
async def channel(socket: FakeSocket) -> AsyncIterator[Channel]:
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(Channel(socket, SchedulerToFrontend, LinksConfig()))  # type: ignore[arg-type]


def joined(*messages: Any) -> bytes:
    return join([encode(message) for message in messages])


async def rest_of(channel: Channel) -> list[Any]:
    """All messages to the end of the link."""
    messages: list[Any] = []
    await channel.serve(messages.append)
    return messages


async def until_sent(socket: FakeSocket, num_messages: int) -> None:
    await until(lambda: len(socket.messages) >= num_messages)


async def until_taken(turns: "asyncio.Queue[None]") -> None:
    """Until the loop that looks for signs of life has had its turn, and waits for the next."""
    await until(turns.empty)
    await asyncio.sleep(0.001)


async def test_what_is_sent_in_one_turn_leaves_in_one_frame(channel: Channel, socket: FakeSocket) -> None:
    for i in range(5):
        channel.send(GetCluster(i), may_wait=i % 2 == 0)
    await until_sent(socket, 5)
    assert socket.sent == [[GetCluster(i) for i in range(5)]]


async def test_what_may_wait_leaves_at_once_on_a_quiet_link(
    channel: Channel, socket: FakeSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "LINGER_S", 0.0)
    channel.send(GetCluster(1))
    await until_sent(socket, 1)
    channel.send(GetCluster(2), may_wait=True)
    await until_sent(socket, 2)


async def test_what_may_wait_shares_the_next_frame_soon_after_another(
    channel: Channel, socket: FakeSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "LINGER_S", 3600.0)
    channel.send(GetCluster(1))
    await until_sent(socket, 1)
    channel.send(GetCluster(2), may_wait=True)
    await asyncio.sleep(0.01)
    channel.send(GetCluster(3), may_wait=True)
    assert socket.sent == [[GetCluster(1)]]
    channel.send(GetCluster(4))
    await until_sent(socket, 4)
    assert socket.sent == [[GetCluster(1)], [GetCluster(2), GetCluster(3), GetCluster(4)]]


async def test_what_has_lingered_leaves_by_itself(channel: Channel, socket: FakeSocket) -> None:
    for i in range(3):
        channel.send(GetCluster(i), may_wait=True)
        await until_sent(socket, i + 1)


async def test_what_waits_for_a_busy_socket_leaves_together_up_to_a_length(
    channel: Channel, socket: FakeSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *rest = [CancelRequest(letter * 30) for letter in "abcdefg"]
    monkeypatch.setattr(channel_module, "MAX_JOINED_BYTES", 3 * len(encode(first)))
    socket.pause()
    channel.send(first)
    await asyncio.sleep(0)
    for message in rest:
        channel.send(message)
    socket.resume()
    await until_sent(socket, 7)
    assert socket.messages == [first, *rest]
    assert max(map(len, socket.sent)) == 3


async def test_a_message_longer_than_what_is_joined_goes_alone(
    channel: Channel, socket: FakeSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "MAX_JOINED_BYTES", 10)
    messages = [CancelRequest(letter * 30) for letter in "abc"]
    for message in messages:
        channel.send(message)
    await until_sent(socket, 3)
    assert socket.sent == [[message] for message in messages]


async def test_a_frame_is_received_message_by_message(channel: Channel, socket: FakeSocket) -> None:
    messages = [Limits(1), Heartbeat(), Limits(2)]
    socket.arrive(join([encode(message) for message in messages]), join([]), join([encode(Limits(3))]))
    assert [await channel.receive(DEADLINE_S) for _ in range(3)] == [Limits(1), Limits(2), Limits(3)]


@pytest.mark.parametrize(("length", "num_turns"), [(10, 0), (1_000, 2), (10_000, 15)], ids=["tiny", "short", "long"])
async def test_a_flood_of_frames_leaves_others_their_turns(
    channel: Channel, socket: FakeSocket, length: int, num_turns: int
) -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    message = CallReply(1, WireError("code", "x" * length))
    messages: list[Any] = []
    socket.arrive(*[join([encode(message)])] * 20)
    task, serving = asyncio.create_task(other()), asyncio.create_task(channel.serve(messages.append))
    await until(lambda: len(messages) == 20)
    assert turns >= num_turns
    socket.arrive(join([encode(Limits(1))]))  # what comes next is not forgotten
    await until(lambda: messages == [message] * 20 + [Limits(1)])
    task.cancel()
    serving.cancel()
    await asyncio.wait([task, serving])


async def test_what_comes_before_anyone_serves_waits_in_order(channel: Channel, socket: FakeSocket) -> None:
    messages: list[Any] = []
    socket.arrive(joined(Limits(1), Limits(2), Limits(3)))
    socket.arrive(joined(Limits(4)))
    assert await channel.receive(DEADLINE_S) == Limits(1)
    serving = asyncio.create_task(channel.serve(messages.append))
    await until(lambda: len(messages) == 3)
    socket.arrive(joined(Limits(5)))
    assert messages == [Limits(2), Limits(3), Limits(4), Limits(5)], "the last one without a turn of the event loop"
    serving.cancel()
    await asyncio.wait([serving])
    assert serving.cancelled()


async def test_what_comes_while_a_flood_waits_for_its_turn_stays_behind_it(
    channel: Channel, socket: FakeSocket
) -> None:
    long = CallReply(1, WireError("code", "x" * 2 * channel_module.MAX_TURN_BYTES))
    messages: list[Any] = []
    serving = asyncio.create_task(channel.serve(messages.append))
    await asyncio.sleep(0)
    socket.arrive(joined(long), joined(Limits(1)))
    assert messages == [long]
    socket.arrive(joined(Limits(2)))
    assert messages == [long], "not before its turn"
    await until(lambda: messages == [long, Limits(1), Limits(2)])
    socket.arrive(joined(long), joined(Limits(3)))
    socket.end(CloseCode.NORMAL_CLOSURE, "")
    async with asyncio.timeout(DEADLINE_S):
        await serving
    assert messages[3:] == [long, Limits(3)], "what had come before the end"


async def test_an_error_of_the_handler_is_raised_and_nothing_more_is_handed_over(
    channel: Channel, socket: FakeSocket
) -> None:
    messages: list[Any] = []

    def handle(message: Any) -> None:
        messages.append(message)
        if message == Limits(2):
            raise RuntimeError("our bug")

    serving = asyncio.create_task(channel.serve(handle))
    await asyncio.sleep(0)
    socket.arrive(joined(Limits(1), Limits(2), Limits(3)), joined(Limits(4)))
    socket.arrive(joined(Limits(5)))
    with pytest.raises(RuntimeError, match="our bug"):
        await serving
    assert messages == [Limits(1), Limits(2)]


async def test_a_broken_frame_comes_after_the_messages_before_it(channel: Channel, socket: FakeSocket) -> None:
    messages: list[Any] = []
    serving = asyncio.create_task(channel.serve(messages.append))
    await asyncio.sleep(0)
    socket.arrive(joined(Limits(1)), b"garbage", joined(Limits(2)))
    with pytest.raises(ProtocolError, match="no message of this direction"):
        await serving
    assert messages == [Limits(1)]


async def test_an_end_from_the_handler_is_the_last_that_it_hears(channel: Channel, socket: FakeSocket) -> None:
    messages: list[Any] = []

    def handle(message: Any) -> None:
        messages.append(message)
        channel.end("enough")

    serving = asyncio.create_task(channel.serve(handle))
    await asyncio.sleep(0)
    socket.arrive(joined(Limits(1), Limits(2)), joined(Limits(3)), b"garbage")
    async with asyncio.timeout(DEADLINE_S):
        await serving
    assert messages == [Limits(1)]
    assert channel.end_reason == "closed with code 1000 enough" and channel.was_closed


async def test_a_link_that_ended_before_it_was_served_ends_at_once(socket: FakeSocket) -> None:
    socket.arrive(joined(Limits(1)))
    socket.end(CloseCode.NORMAL_CLOSURE, "")
    await socket.wait_closed()
    async with asyncio.timeout(DEADLINE_S), opened(socket, heartbeat_s=1.0, silence_s=3600.0) as channel:
        assert await rest_of(channel) == [Limits(1)]
        with pytest.raises(ProtocolError, match="the link ended too early: closed with code 1000"):
            await channel.receive(DEADLINE_S)


async def test_a_broken_frame_is_a_protocol_error(channel: Channel, socket: FakeSocket) -> None:
    socket.arrive(encode(Limits(1)))  # not in an array
    with pytest.raises(ProtocolError, match="no message of this direction"):
        await channel.receive(DEADLINE_S)


async def test_a_message_beyond_the_limit_is_not_sent_and_the_link_goes_on(
    channel: Channel, socket: FakeSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = CancelRequest("x" * 80)
    monkeypatch.setattr(channel_module, "MAX_FRAME_BYTES", len(join([encode(fits)])))
    with pytest.raises(ProtocolError, match=r"CancelRequest of .* bytes does not fit"):
        channel.send(CancelRequest("x" * 81))
    channel.send(fits)
    await until_sent(socket, 1)
    assert socket.messages == [fits]


async def test_a_peer_that_does_not_read_is_cut(
    channel: Channel, socket: FakeSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = CancelRequest("x" * 100)
    monkeypatch.setattr(channel_module, "MAX_QUEUED_BYTES", 3 * len(encode(message)))
    socket.pause()
    for _ in range(3):
        channel.send(message)
        await asyncio.sleep(0)
    assert channel.end_reason == "it has not ended" and not channel.was_closed
    channel.send(message)
    async with asyncio.timeout(DEADLINE_S):
        assert await rest_of(channel) == []
        assert "reads too slowly" in channel.end_reason and not channel.was_closed
        await channel.close()


async def test_bytes_that_have_left_no_longer_count(
    channel: Channel, socket: FakeSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = CancelRequest("x" * 100)
    monkeypatch.setattr(channel_module, "MAX_QUEUED_BYTES", 2 * len(encode(message)))
    for i in range(10):
        channel.send(message)
        await until_sent(socket, i + 1)
    assert channel.end_reason == "it has not ended"


async def test_an_end_lets_out_what_is_queued_and_nothing_more(channel: Channel, socket: FakeSocket) -> None:
    channel.send(GetCluster(1), may_wait=True)
    channel.end("replaced")
    channel.send(GetCluster(2))
    async with asyncio.timeout(DEADLINE_S):
        assert await rest_of(channel) == []
    assert socket.messages == [GetCluster(1)]
    assert channel.end_reason == "closed with code 1000 replaced"


async def test_an_end_does_not_wait_for_a_peer_that_does_not_read(
    channel: Channel, socket: FakeSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "CLOSE_TIMEOUT_S", 0.05)
    socket.pause()
    channel.send(GetCluster(1))
    channel.end("replaced")
    async with asyncio.timeout(DEADLINE_S):
        assert await rest_of(channel) == []
    assert socket.messages == []
    assert channel.end_reason == "the connection broke" and not channel.was_closed


async def test_closing_does_not_wait_for_a_peer_that_does_not_read(
    channel: Channel, socket: FakeSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "CLOSE_TIMEOUT_S", 0.05)
    socket.pause()
    channel.send(GetCluster(1))
    async with asyncio.timeout(DEADLINE_S):
        await channel.close()
    assert socket.messages == []
    assert channel.end_reason == "the connection broke"


async def test_a_reason_longer_than_a_close_frame_is_shortened(channel: Channel, socket: FakeSocket) -> None:
    await channel.close("ü" * 100)
    assert socket.close_reason == "ü" * 61


# -------------------------------------------------------------- heartbeats


def opened(socket: FakeSocket, *, heartbeat_s: float, silence_s: float) -> Channel:
    links = LinksConfig(heartbeat_s=heartbeat_s, silence_s=silence_s)
    return Channel(socket, SchedulerToFrontend, links)  # type: ignore[arg-type]


async def test_a_silent_peer_is_cut_off_though_it_was_told_that_we_live(socket: FakeSocket) -> None:
    async with opened(socket, heartbeat_s=0.01, silence_s=0.05) as channel:
        async with asyncio.timeout(DEADLINE_S):
            assert await rest_of(channel) == []
        assert channel.end_reason == "the peer has said nothing for 0.05 s"
    assert socket.messages and set(map(type, socket.messages)) == {Heartbeat}


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> "asyncio.Queue[None]":
    """Of the loop that looks for signs of life: the test counts them out, and a heartbeat's second is one of them."""
    turns: asyncio.Queue[None] = asyncio.Queue()
    sleep = asyncio.sleep

    async def sleep_a_turn(delay_s: float) -> None:
        await (turns.get() if delay_s == 1.0 else sleep(delay_s))

    monkeypatch.setattr("punica_serve.channel.asyncio.sleep", sleep_a_turn)
    return turns


@pytest.mark.parametrize("frame", [[], [Heartbeat()], [Limits(1)]], ids=["an empty one", "a heartbeat", "a message"])
async def test_whatever_arrives_is_a_sign_of_life(
    socket: FakeSocket, turns: "asyncio.Queue[None]", frame: list[Any]
) -> None:
    """Ten times as long as a silence may last."""
    async with opened(socket, heartbeat_s=1.0, silence_s=2.0) as channel:
        reading = asyncio.create_task(channel.serve(lambda _: None))
        for _ in range(20):
            socket.arrive(join([encode(message) for message in frame]))
            await asyncio.sleep(0.001)
            turns.put_nowait(None)
            await asyncio.sleep(0.001)
        assert channel.end_reason == "it has not ended"
        for _ in range(3):
            turns.put_nowait(None)
        await until(lambda: channel.end_reason != "it has not ended")
        assert channel.end_reason == "the peer has said nothing for 2 s"
        await reading


async def test_an_end_that_has_something_to_say_sends_no_heartbeats(
    socket: FakeSocket, turns: "asyncio.Queue[None]"
) -> None:
    said = [GetCluster(i) for i in range(20)]
    async with opened(socket, heartbeat_s=1.0, silence_s=3600.0) as channel:
        for number, message in enumerate(said, 1):
            channel.send(message)
            await until_sent(socket, number)
            turns.put_nowait(None)
            await until_taken(turns)
        turns.put_nowait(None)
        await until_sent(socket, len(said) + 1)
    assert socket.messages == [*said, Heartbeat()]


async def test_heartbeats_do_not_pile_up_before_a_peer_that_does_not_read(socket: FakeSocket) -> None:
    socket.pause()
    async with opened(socket, heartbeat_s=0.01, silence_s=3600.0) as channel:
        channel.send(GetCluster(1))
        await asyncio.sleep(0.1)
        socket.resume()
        await until_sent(socket, 2)
    assert socket.messages[:2] == [GetCluster(1), Heartbeat()]
