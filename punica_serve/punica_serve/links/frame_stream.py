"""Websockets between our processes: whole binary messages in and out, without a queue or a task of their own.

websockets does the handshakes, the closing, and the parsing of unusual input. A message goes from the socket's reading
callback to the queue of received messages, and ``on_frames`` tells the owner that there are some.

There is a fast path: nearly every read is one whole binary frame, or a few. Their headers show it, and the payloads go
where the parser would have sent them. Everything else goes through the parser, in the same order.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.server import ServerConnection
from websockets.frames import Frame

from punica_serve.links.websockets_private import PrivateConnection, apply_mask

#: With more received messages than these, reading from the socket pauses.
MAX_WAITING_FRAMES = 16

#: First byte of a binary frame that is a whole message.
_WHOLE_BINARY = 0x82
_MASKED = 0x80
_MASK_BYTES = 4
_MAX_HEADER_BYTES = 10
#: These values of the length field say that the length follows, in two bytes or in eight.
_LONG, _LONGEST = 126, 127


def _ignore() -> None:
    pass


class FrameSocket(PrivateConnection):
    """Either end of a link. Its owner sets the three callbacks, which run in the event loop's own, once it is open."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: Received messages, oldest first.
        self._frames: deque[bytes] = deque()
        #: The received part of a message that is sent in several frames; None: no such message is under way.
        self._fragments: bytearray | None = None
        self._is_reading = True
        #: The transport's buffer is full, so nothing should be written.
        self.is_paused = False
        #: Nothing arrives any more.
        self.has_ended = False
        #: There are messages to take.
        self.on_frames: Callable[[], None] = _ignore
        #: It is no longer paused.
        self.on_writable: Callable[[], None] = _ignore
        #: It has ended.
        self.on_end: Callable[[], None] = _ignore

    def take(self) -> bytes | None:
        """Removes and returns the oldest received message; None if there is none."""
        if self._frames:
            return self._frames.popleft()
        if not self._is_reading and not self.has_ended:
            self._is_reading = True
            self.transport.resume_reading()
        return None

    def write(self, payload: bytes) -> None:
        """Sends a message, unless the link has ended. While ``is_paused``, every write grows the buffer."""
        if self.is_open:
            self.send_now(payload)

    def abort(self) -> None:
        """Ends the connection at once, without a closing handshake."""
        self.transport.abort()

    # -------------------------------------------------------------- callbacks of asyncio and websockets

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

    def take_data_frame(self, frame: Frame) -> None:
        fragments = self._fragments or bytearray()
        fragments += frame.data
        if frame.fin:
            self._frames.append(bytes(fragments))
        self._fragments = None if frame.fin else fragments

    def pause_writing(self) -> None:
        super().pause_writing()
        self.is_paused = True

    def resume_writing(self) -> None:
        super().resume_writing()
        self.is_paused = False
        self.on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.is_paused = False
        self.has_ended = True
        self.on_end()

    # -------------------------------------------------------------- the fast path

    def _payloads(self, data: bytes) -> list[bytes] | None:
        """The payloads, if the read is made of whole binary frames; None if it must go through the parser."""
        if self._fragments is not None or self.has_partial_frame or not self.is_open:
            return None
        is_masked = self.is_masked
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
