"""Websockets between our processes, with a short way in for the frames that they are made of.

The library's parser can do with any split of the stream into reads, and takes 15 µs for a frame of which we send ten
thousand a second. Nearly always a read is one whole binary frame, or a few: that is seen by their headers, and they go
where the parser would have sent them. Everything else goes through the parser.
"""

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection
from websockets.frames import Frame, Opcode
from websockets.protocol import Side, State

try:
    from websockets.speedups import apply_mask  # 0.1 µs for a step's report
except ImportError:  # where there is no wheel for the machine
    from websockets.utils import apply_mask  # 2.6 µs

#: First byte of a binary frame that is a message of its own.
_WHOLE_BINARY = 0x82
_MASKED = 0x80
_MASK_BYTES = 4
_MAX_HEADER_BYTES = 10
#: Lengths from here on stand in two more bytes, or in eight.
_LONG, _LONGEST = 126, 127


class _ShortWay(Connection):
    def data_received(self, data: bytes) -> None:
        payloads = self._payloads(data)
        if payloads is None:
            super().data_received(data)
            return
        for payload in payloads:
            self.process_event(Frame(Opcode.BINARY, payload))

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


class ShortWayClient(_ShortWay, ClientConnection):
    """The dialling end."""


class ShortWayServer(_ShortWay, ServerConnection):
    """The listening end."""
