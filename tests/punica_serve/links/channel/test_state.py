"""A channel goes through its states by the table, and through no others."""

import asyncio

import pytest
from websockets.frames import CloseCode

from fake_socket import FakeSocket, joined, rest_of
from punica_serve.errors.invariants import InvariantBroken
from punica_serve.links import channel as channel_module
from punica_serve.links.channel import Channel
from punica_serve.links.channel_state import TRANSITIONS, ChannelState
from punica_serve.protocol import GetCluster, Limits
from waits import DEADLINE_S


def state(channel: Channel) -> ChannelState:
    """The state as it is now: a type checker believes that an attribute stays."""
    return channel.state


def test_every_state_is_in_the_table_and_can_be_reached() -> None:
    assert set(TRANSITIONS) == set(ChannelState)
    assert frozenset().union(*TRANSITIONS.values()) == set(ChannelState) - {ChannelState.OPEN}


async def test_a_channel_that_this_end_closes(channel: Channel, socket: FakeSocket) -> None:
    assert state(channel) is ChannelState.OPEN
    channel.end("enough")
    assert state(channel) is ChannelState.CLOSING
    async with asyncio.timeout(DEADLINE_S):
        await socket.wait_closed()
    assert state(channel) is ChannelState.CLOSED


async def test_a_channel_that_this_end_cuts(
    channel: Channel, socket: FakeSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "MAX_QUEUED_BYTES", 0)
    channel.send(GetCluster(1))
    assert state(channel) is ChannelState.CUT
    channel.end("too late for a reason")
    assert state(channel) is ChannelState.CUT
    async with asyncio.timeout(DEADLINE_S):
        await socket.wait_closed()
    assert state(channel) is ChannelState.CLOSED


async def test_a_channel_whose_peer_closes_delivers_what_arrived_until_this_end_closes_it_too(
    channel: Channel, socket: FakeSocket
) -> None:
    socket.arrive(joined(Limits(1), Limits(2)))
    socket.end(CloseCode.NORMAL_CLOSURE, "")
    async with asyncio.timeout(DEADLINE_S):
        await socket.wait_closed()
        assert state(channel) is ChannelState.DISCONNECTED
        assert await channel.receive(DEADLINE_S) == Limits(1)
        channel.end()
        assert state(channel) is ChannelState.CLOSED
        assert await rest_of(channel) == []


@pytest.mark.parametrize(
    ("start", "finish"),
    [(start, finish) for start in ChannelState for finish in ChannelState if finish not in TRANSITIONS[start]],
)
async def test_a_transition_outside_the_table_is_a_bug(
    channel: Channel, start: ChannelState, finish: ChannelState
) -> None:
    channel.state = start
    with pytest.raises(InvariantBroken, match=f"a channel that is {start.value} can't become {finish.value}"):
        channel._become(finish)
    assert channel.state is start
    channel.state = ChannelState.OPEN
