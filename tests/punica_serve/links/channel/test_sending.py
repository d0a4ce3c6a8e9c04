"""Which messages share a frame, when frames leave, and the limits."""

import asyncio

import pytest

from fake_socket import FakeSocket, joined, rest_of, until_sent
from punica_serve.errors import ProtocolError
from punica_serve.links import channel as channel_module
from punica_serve.links import outgoing
from punica_serve.links.channel import Channel
from punica_serve.protocol import CancelRequest, GetCluster, encode
from waits import DEADLINE_S


async def test_messages_sent_in_one_turn_leave_in_one_frame(channel: Channel, socket: FakeSocket) -> None:
    for i in range(5):
        channel.send(GetCluster(i), may_wait=i % 2 == 0)
    await until_sent(socket, 5)
    assert socket.sent == [[GetCluster(i) for i in range(5)]]


async def test_a_message_that_may_wait_leaves_at_once_on_a_quiet_link(
    channel: Channel, socket: FakeSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "LINGER_S", 0.0)
    channel.send(GetCluster(1))
    await until_sent(socket, 1)
    channel.send(GetCluster(2), may_wait=True)
    await until_sent(socket, 2)


async def test_a_message_that_may_wait_shares_the_next_frame_on_a_busy_link(
    channel: Channel, socket: FakeSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "LINGER_S", 3600.0)
    for i in range(2):
        channel.send(GetCluster(i))
        await until_sent(socket, i + 1)
    channel.send(GetCluster(2), may_wait=True)
    await asyncio.sleep(0.01)
    channel.send(GetCluster(3), may_wait=True)
    assert len(socket.sent) == 2
    channel.send(GetCluster(4))
    await until_sent(socket, 5)
    assert socket.sent[2:] == [[GetCluster(2), GetCluster(3), GetCluster(4)]]


async def test_tokens_behind_an_acknowledgement_leave_at_once(
    channel: Channel, socket: FakeSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "LINGER_S", 60.0)
    channel.send(GetCluster(1))
    await until_sent(socket, 1)
    channel.send(GetCluster(2), may_wait=True)
    await until_sent(socket, 2)


async def test_a_message_that_has_lingered_leaves_by_itself(channel: Channel, socket: FakeSocket) -> None:
    for i in range(3):
        channel.send(GetCluster(i), may_wait=True)
        await until_sent(socket, i + 1)


async def test_messages_that_wait_for_a_full_socket_leave_together_up_to_a_length(
    channel: Channel, socket: FakeSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *rest = [CancelRequest(letter * 30) for letter in "abcdefg"]
    monkeypatch.setattr(outgoing, "MAX_JOINED_BYTES", 3 * len(encode(first)))
    socket.pause()
    channel.send(first)
    await asyncio.sleep(0)
    for message in rest:
        channel.send(message)
    socket.resume()
    await until_sent(socket, 7)
    assert socket.messages == [first, *rest]
    assert max(map(len, socket.sent)) == 3


async def test_a_message_too_long_to_be_joined_goes_alone(
    channel: Channel, socket: FakeSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "MAX_JOINED_BYTES", 10)
    messages = [CancelRequest(letter * 30) for letter in "abc"]
    for message in messages:
        channel.send(message)
    await until_sent(socket, 3)
    assert socket.sent == [[message] for message in messages]


async def test_a_message_beyond_the_limit_is_not_sent_and_the_link_goes_on(
    channel: Channel, socket: FakeSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = CancelRequest("x" * 80)
    monkeypatch.setattr(channel_module, "MAX_FRAME_BYTES", len(joined(fits)))
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


async def test_sent_bytes_no_longer_count(
    channel: Channel, socket: FakeSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = CancelRequest("x" * 100)
    monkeypatch.setattr(channel_module, "MAX_QUEUED_BYTES", 2 * len(encode(message)))
    for i in range(10):
        channel.send(message)
        await until_sent(socket, i + 1)
    assert channel.end_reason == "it has not ended"
