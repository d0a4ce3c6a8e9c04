"""How each end of a channel knows that the other lives."""

import asyncio
from typing import Any

import pytest

from fake_socket import FakeSocket, joined, opened, rest_of, until_sent
from punica_serve.protocol import GetCluster, Heartbeat, Limits
from waits import DEADLINE_S, until


async def until_taken(turns: "asyncio.Queue[None]") -> None:
    """Waits until the keep-alive loop has had its turn and waits for the next."""
    await until(turns.empty)
    await asyncio.sleep(0.001)


async def test_a_silent_peer_is_cut_off_though_it_gets_our_heartbeats(socket: FakeSocket) -> None:
    async with opened(socket, heartbeat_s=0.01, silence_s=0.05) as channel:
        async with asyncio.timeout(DEADLINE_S):
            assert await rest_of(channel) == []
        assert channel.end_reason == "the peer has sent nothing for 0.05 s"
    assert socket.messages and set(map(type, socket.messages)) == {Heartbeat}


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> "asyncio.Queue[None]":
    """Turns of the keep-alive loop: each item that the test puts in lets it sleep for one heartbeat interval."""
    turns: asyncio.Queue[None] = asyncio.Queue()
    sleep = asyncio.sleep

    async def sleep_a_turn(delay_s: float) -> None:
        await (turns.get() if delay_s == 1.0 else sleep(delay_s))

    monkeypatch.setattr("punica_serve.links.channel.asyncio.sleep", sleep_a_turn)
    return turns


@pytest.mark.parametrize("frame", [[], [Heartbeat()], [Limits(1)]], ids=["an empty one", "a heartbeat", "a message"])
async def test_any_frame_is_a_sign_of_life(socket: FakeSocket, turns: "asyncio.Queue[None]", frame: list[Any]) -> None:
    """Runs for ten times the longest allowed silence."""
    async with opened(socket, heartbeat_s=1.0, silence_s=2.0) as channel:
        reading = asyncio.create_task(channel.serve(lambda _: None))
        for _ in range(20):
            socket.arrive(joined(*frame))
            await asyncio.sleep(0.001)
            turns.put_nowait(None)
            await asyncio.sleep(0.001)
        assert channel.end_reason == "it has not ended"
        for _ in range(3):
            turns.put_nowait(None)
        await until(lambda: channel.end_reason != "it has not ended")
        assert channel.end_reason == "the peer has sent nothing for 2 s"
        await reading


async def test_an_end_that_sends_messages_sends_no_heartbeats(socket: FakeSocket, turns: "asyncio.Queue[None]") -> None:
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


async def test_heartbeats_do_not_pile_up_for_a_peer_that_does_not_read(socket: FakeSocket) -> None:
    socket.pause()
    async with opened(socket, heartbeat_s=0.01, silence_s=3600.0) as channel:
        channel.send(GetCluster(1))
        await asyncio.sleep(0.1)
        socket.resume()
        await until_sent(socket, 2)
    assert socket.messages[:2] == [GetCluster(1), Heartbeat()]
