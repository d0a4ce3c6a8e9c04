"""The private parts of websockets that links use. No other module of this package may use any.

Its public interface hands a message to a task that awaits it, which costs 40 µs for each of ten thousand messages a
second. ``create_connection``, which is public, lets a subclass of the connection take messages in the socket's reading
callback and write them without waiting. A subclass needs these undocumented parts, which a release may change:

    Connection.protocol         the sans-I/O protocol of this connection, whose own methods are public
    Connection.transport        asyncio's transport
    Connection.process_event    is called with each frame that the parser has read
    Connection.send_data        writes the frames that the protocol has queued
    Protocol.reader.buffer      the bytes that wait for the rest of their frame
    speedups.apply_mask         the compiled XOR of a payload and its mask

pyproject.toml bounds the version, and ``test_websockets_private`` says which part a new one has changed.
"""

import asyncio

from websockets.asyncio.connection import Connection
from websockets.frames import DATA_OPCODES, Frame
from websockets.protocol import Event, Side, State

try:
    from websockets.speedups import apply_mask  # 0.1 µs for a step report
except ImportError:  # the machine has no wheel
    from websockets.utils import apply_mask  # 2.6 µs

__all__ = ["PrivateConnection", "apply_mask"]


class PrivateConnection(Connection):
    """A connection that calls ``take_data_frame`` in place of queueing messages for ``recv``."""

    #: Set by ``connection_made``.
    transport: asyncio.Transport

    @property
    def is_masked(self) -> bool:
        """Whether the frames that arrive here are masked, which clients do and servers don't."""
        return self.protocol.side is Side.SERVER

    @property
    def is_open(self) -> bool:
        """The handshake is done, and neither end has begun to close."""
        return self.protocol.state is State.OPEN

    @property
    def has_partial_frame(self) -> bool:
        """The parser holds the beginning of a frame."""
        return bool(self.protocol.reader.buffer)

    def send_now(self, payload: bytes) -> None:
        """Writes a binary message without waiting. The connection must be open."""
        self.protocol.send_binary(payload)
        self.send_data()

    def take_data_frame(self, frame: Frame) -> None:
        """Called with each frame of a message that went through the parser; a message may have several."""
        raise NotImplementedError

    def process_event(self, event: Event) -> None:
        if isinstance(event, Frame) and event.opcode in DATA_OPCODES:
            self.take_data_frame(event)
        else:
            super().process_event(event)
