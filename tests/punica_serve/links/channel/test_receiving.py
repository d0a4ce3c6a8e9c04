"""Delivery of messages: in order, in turns of the event loop, and an error for a broken frame."""

import asyncio
from typing import Any

import pytest
from websockets.frames import CloseCode

from fake_socket import FakeSocket, joined
from punica_serve.errors import ProtocolError
from punica_serve.links import channel as channel_module
from punica_serve.links.channel import Channel, Rest
from punica_serve.protocol import CallReply, Heartbeat, Limits, WireError, encode
from waits import DEADLINE_S, until


async def test_a_frame_is_received_message_by_message(channel: Channel, socket: FakeSocket) -> None:
    messages = [Limits(1), Heartbeat(), Limits(2)]
    socket.arrive(joined(*messages), joined(), joined(Limits(3)))
    assert [await channel.receive(DEADLINE_S) for _ in range(3)] == [Limits(1), Limits(2), Limits(3)]


@pytest.mark.parametrize(("length", "num_turns"), [(10, 0), (1_000, 2), (10_000, 15)], ids=["tiny", "short", "long"])
async def test_a_flood_of_frames_gives_other_tasks_their_turns(
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
    socket.arrive(*[joined(message)] * 20)
    task, serving = asyncio.create_task(other()), asyncio.create_task(channel.serve(messages.append))
    await until(lambda: len(messages) == 20)
    assert turns >= num_turns
    socket.arrive(joined(Limits(1)))  # the next frame is delivered too
    await until(lambda: messages == [message] * 20 + [Limits(1)])
    task.cancel()
    serving.cancel()
    await asyncio.wait([task, serving])


async def test_a_rest_comes_after_woken_tasks_and_before_the_next_message(channel: Channel, socket: FakeSocket) -> None:
    happened: list[object] = []
    woken = asyncio.Event()

    async def reader() -> None:
        await woken.wait()
        happened.append("reader")

    def handle(message: Limits) -> Rest | None:
        happened.append(message)
        woken.set()
        return (lambda: happened.append("rest")) if message.num_gpus == 1 else None

    tasks = [asyncio.create_task(reader()), asyncio.create_task(channel.serve(handle))]
    await asyncio.sleep(0)
    socket.arrive(joined(Limits(1), Limits(2)), joined(Limits(3)))
    await until(lambda: len(happened) == 5)
    assert happened == [Limits(1), "reader", "rest", Limits(2), Limits(3)]
    tasks[1].cancel()
    await asyncio.wait(tasks)


async def test_a_rest_that_fails_ends_the_serving(channel: Channel, socket: FakeSocket) -> None:
    def fail() -> None:
        raise ProtocolError("a token is missing")

    serving = asyncio.create_task(channel.serve(lambda message: fail))
    await asyncio.sleep(0)
    socket.arrive(joined(Limits(1)))
    with pytest.raises(ProtocolError, match="a token is missing"):
        async with asyncio.timeout(DEADLINE_S):
            await serving


async def test_messages_that_arrive_before_serve_wait_in_order(channel: Channel, socket: FakeSocket) -> None:
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


async def test_messages_that_arrive_while_a_flood_waits_for_its_turn_stay_behind_it(
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
    assert messages[3:] == [long, Limits(3)], "the messages that arrived before the end"


async def test_an_error_of_the_handler_is_raised_and_nothing_more_is_delivered(
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


async def test_a_broken_frame_is_a_protocol_error(channel: Channel, socket: FakeSocket) -> None:
    socket.arrive(encode(Limits(1)))  # not in an array
    with pytest.raises(ProtocolError, match="no message of this direction"):
        await channel.receive(DEADLINE_S)
