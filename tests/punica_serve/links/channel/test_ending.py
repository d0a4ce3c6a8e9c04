"""How a channel ends: from either side, and with a peer that does not read."""

import asyncio
from typing import Any

import pytest
from websockets.frames import CloseCode

from fake_socket import FakeSocket, joined, opened, rest_of
from punica_serve.errors import ProtocolError
from punica_serve.links import channel as channel_module
from punica_serve.links.channel import Channel
from punica_serve.protocol import GetCluster, Limits
from waits import DEADLINE_S


async def test_a_handler_that_ends_the_channel_gets_no_further_message(channel: Channel, socket: FakeSocket) -> None:
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


async def test_queued_messages_leave_before_the_end_and_later_ones_do_not(channel: Channel, socket: FakeSocket) -> None:
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
