"""Websockets between our processes: whole binary messages in and out, without a queue or a task of their own.

The library does the handshakes, the parsing of what is out of the ordinary, and the end. What it has for messages
suits programs that await one after the other, and costs 40 µs for each of ten thousand a second. Here a message goes
from the socket's reading callback to the ``frames`` that wait, and ``on_frames`` is called for those who take them.

There is a short way in: nearly always a read is one whole binary frame, or a few. That is seen by their headers, and
the payloads go where the parser would have sent them. Everything else goes through the parser, in the same order.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection
from websockets.frames import DATA_OPCODES, Frame
from websockets.protocol import Event, Side, State

try:
    from websockets.speedups import apply_mask  # 0.1 µs for a step's report
except ImportError:  # where there is no wheel for the machine
    from websockets.utils import apply_mask  # 2.6 µs

#: While more messages than these wait to be taken, nothing is read from the socket.
MAX_WAITING_FRAMES = 16

#: First byte of a binary frame that is a message of its own.
_WHOLE_BINARY = 0x82
_MASKED = 0x80
_MASK_BYTES = 4
_MAX_HEADER_BYTES = 10
#: Lengths from here on stand in two more bytes, or in eight.
_LONG, _LONGEST = 126, 127


def _ignore() -> None:
    pass


class FrameSocket(Connection):
    """Either end. Its owner sets the three callbacks once it is open; they are called from the event loop's own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: Messages that have come and wait to be taken, oldest first.
        self._frames: deque[bytes] = deque()
        #: Of a message that comes in several frames, what has come.
        self._fragments = bytearray()
        self._is_reading = True
        #: There are frames to take.
        self.on_frames: Callable[[], None] = _ignore
        #: It takes writes again.
        self.on_writable: Callable[[], None] = _ignore
        #: Nothing comes any more.
        self.on_end: Callable[[], None] = _ignore

    @property
    def has_ended(self) -> bool:
        return self.connection_lost_waiter.done()

    def take(self) -> bytes | None:
        """The oldest message that waits."""
        if self._frames:
            return self._frames.popleft()
        if not self._is_reading and not self.has_ended:
            self._is_reading = True
            self.transport.resume_reading()
        return None

    def write(self, payload: bytes) -> None:
        """Sends a message, if the link has not ended. Whoever writes while ``paused`` fills the memory."""
        if self.protocol.state is State.OPEN:
            self.protocol.send_binary(payload)
            self.send_data()

    # -------------------------------------------------------------- the library's callbacks

    def data_received(self, data: bytes) -> None:
        if (payloads := self._payloads(data)) is None:
            super().data_received(data)
        else:
            self._frames += payloads
        if self._frames:
            self.on_frames()
            if len(self._frames) > MAX_WAITING_FRAMES and self._is_reading:
                self._is_reading = False
                self.transport.pause_reading()

    def process_event(self, event: Event) -> None:
        if not isinstance(event, Frame) or event.opcode not in DATA_OPCODES:
            super().process_event(event)
            return
        self._fragments += event.data
        if event.fin:
            self._frames.append(bytes(self._fragments))
            self._fragments.clear()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.on_end()

    # -------------------------------------------------------------- the short way

    def _payloads(self, data: bytes) -> list[bytes] | None:
        """Of the whole frames that the read is made of, if it is, and if the parser is between two messages."""
        protocol = self.protocol
        if protocol.reader.buffer or protocol.current_size is not None or protocol.state is not State.OPEN:
            return None
        is_masked = protocol.side is Side.SERVER
        payloads = []
        start, end = 0, len(data)
        while start < end:
            header = data[start : start + _MAX_HEADER_BYTES]
            if len(header) < 2 or header[0] != _WHOLE_BINARY or bool(header[1] & _MASKED) != is_masked:
                return None
            length = header[1] & ~_MASKED
            start += 2
            if length == _LONG:
                length, start = int.from_bytes(header[2:4]), start + 2
            elif length == _LONGEST:
                length, start = int.from_bytes(header[2:10]), start + 8
            mask = data[start : start + _MASK_BYTES]
            start += _MASK_BYTES if is_masked else 0
            if start + length > end:
                return None
            payload = data[start : start + length]
            payloads.append(apply_mask(payload, mask) if is_masked else payload)
            start += length
        return payloads


class DialledSocket(FrameSocket, ClientConnection):
    """The dialling end."""


class AcceptedSocket(FrameSocket, ServerConnection):
    """The listening end."""
