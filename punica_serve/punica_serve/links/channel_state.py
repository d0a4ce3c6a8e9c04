"""The states of a channel.

open ──▶ closing ──▶ closed
  │ └──▶ cut ─────────▲
  └────▶ disconnected ┘
"""

from enum import Enum


class ChannelState(Enum):
    #: Messages go both ways.
    OPEN = "open"
    #: This end closes the link: queued messages still leave, and nothing that arrives is delivered.
    CLOSING = "closing"
    #: This end has aborted the connection: nothing is sent or delivered.
    CUT = "cut"
    #: The connection has ended. Messages that arrived before are still delivered.
    DISCONNECTED = "disconnected"
    #: The connection has ended, and nothing is delivered.
    CLOSED = "closed"


TRANSITIONS: dict[ChannelState, frozenset[ChannelState]] = {
    ChannelState.OPEN: frozenset({ChannelState.CLOSING, ChannelState.CUT, ChannelState.DISCONNECTED}),
    ChannelState.CLOSING: frozenset({ChannelState.CLOSED}),
    ChannelState.CUT: frozenset({ChannelState.CLOSED}),
    ChannelState.DISCONNECTED: frozenset({ChannelState.CLOSED}),
    ChannelState.CLOSED: frozenset(),
}

#: In these states, messages that arrive or have arrived are delivered.
DELIVERING = (ChannelState.OPEN, ChannelState.DISCONNECTED)
