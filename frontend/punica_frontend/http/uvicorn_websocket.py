"""A websocket on uvicorn's undocumented parts."""

import asyncio
from collections import Counter
from typing import Any, cast

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode
from websockets.protocol import State

from punica_frontend.http.body_pieces import EXTENSION
from punica_frontend.http.corked import CorkedTransport
from punica_frontend.http.deadline import Deadline
from punica_frontend.http.handshake import Handshake
from punica_frontend.http.stalled_clients import STALL_TIMEOUT_S, count_if_stalled
from punica_frontend.metrics.metrics import CutReason

#: How long a stalled websocket has to take the rest and the close reason.
CLOSE_TIMEOUT_S = 5.0
#: How much received data of a websocket is parsed in one turn of the event loop.
SLICE_BYTES = 8 << 10

_TEXT_HEAD = 0x81  # the final frame of a text message


class GuardedWebSocket(WebSocketsSansIOProtocol):
    """One websocket. Messages written in one turn of the event loop leave together.

    Input is parsed in slices, and only while the application keeps up and the client takes what it is sent. Otherwise a
    quarter of a megabyte of empty messages would block the loop for half a second, and answers to a flood of pings
    would pile up.
    """

    def __init__(self, num_cut: Counter[CutReason], **options: Any) -> None:
        """Takes the same arguments as ``GuardedHttp``."""
        super().__init__(**options)
        self._num_cut = num_cut
        self._application, self.app = self.app, cast(Any, self._run_application)
        self._messages = _TextMessages(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._corked = CorkedTransport(cast(asyncio.Transport, transport), self.loop)
        super().connection_made(cast(asyncio.Transport, self._corked))
        self.conn: Handshake = Handshake(max_size=self.config.ws_max_size, logger=self.logger)
        self._unparsed = bytearray()
        self._will_parse = False
        self._stall_deadline = Deadline(self.loop, STALL_TIMEOUT_S, self._end_stalled)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stall_deadline.cancel()
        count_if_stalled(self._num_cut, exc)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_deadline.start()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stall_deadline.cancel()
        self._parse_soon()

    def data_received(self, data: bytes) -> None:
        self._unparsed += data
        if not self._will_parse and self._may_parse():
            self._parse()
        self._corked.hold_reading(bool(self._unparsed))

    async def receive(self) -> Any:
        message = await super().receive()
        self._parse_soon()
        return message

    async def send(self, message: Any) -> None:
        text = message.get("text")
        if text is not None and self.handshake_complete:
            await self._messages.send(text.encode())
            return
        await super().send(message)
        # A complete refusal ends the handshake too; without this uvicorn would log an error.
        self.handshake_complete = self.handshake_complete or self.close_sent
        self._parse_soon()

    async def _run_application(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Offers the application the short way for messages of text."""
        scope["extensions"][EXTENSION] = self._messages
        await cast(ASGIApp, self._application)(scope, receive, send)

    def _may_parse(self) -> bool:
        """After our close uvicorn drops messages, and the client's close must still be found behind them."""
        return bool(self._unparsed) and (self.queue.empty() or self.close_sent) and self.writable.is_set()

    def _parse_soon(self) -> None:
        """Parses in the next turn of the loop, so that other connections have theirs."""
        if not self._will_parse and self._may_parse():
            self._will_parse = True
            self.loop.call_soon(self._parse)

    def _parse(self) -> None:
        self._will_parse = False
        if self.transport.is_closing():
            self._unparsed.clear()
            return
        piece = bytes(self._unparsed[:SLICE_BYTES])
        del self._unparsed[:SLICE_BYTES]
        super().data_received(piece)
        if self.conn.is_unreadable:
            self._refuse_handshake()
        self._corked.hold_reading(bool(self._unparsed))
        self._parse_soon()

    def _refuse_handshake(self) -> None:
        """Answers and closes; uvicorn would leave the connection open without an answer."""
        self.handshake_complete = self.close_sent = True
        self.transport.write(self.conn.refusal())
        self.transport.close()

    def _end_stalled(self) -> None:
        """Ends the requests now. The client learns the reason if it reads within CLOSE_TIMEOUT_S."""
        if self.close_sent or self.transport.is_closing():
            return
        self._num_cut["stalled"] += 1
        self.stop_keepalive()
        reason = f"took nothing for {STALL_TIMEOUT_S:g} s"
        self.queue.put_nowait({"type": "websocket.disconnect", "code": CloseCode.POLICY_VIOLATION, "reason": reason})
        self.conn.send_close(CloseCode.POLICY_VIOLATION, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = self.disconnected = True
        self.transport.close()
        self.writable.set()
        self.loop.call_later(CLOSE_TIMEOUT_S, self.transport.abort)


class _TextMessages:
    """A PieceWriter whose pieces are messages of text: nearly all that is sent. A frame's header, and out."""

    def __init__(self, websocket: GuardedWebSocket) -> None:
        self._websocket = websocket

    @property
    def is_writable(self) -> bool:
        websocket = self._websocket
        return websocket.conn.state is State.OPEN and websocket.writable.is_set() and not websocket.disconnected

    def write(self, piece: bytes) -> None:
        self._websocket.transport.write(_message_head(len(piece)) + piece)

    async def send(self, piece: bytes) -> None:
        if not self._websocket.writable.is_set():
            await self._websocket.writable.wait()
        if not self.is_writable:
            raise ClientDisconnected()
        self.write(piece)


def _message_head(num_bytes: int) -> bytes:
    """Returns the header of an unmasked websocket text message (RFC 6455, section 5.2)."""
    if num_bytes < 126:
        return bytes((_TEXT_HEAD, num_bytes))
    if num_bytes < 1 << 16:
        return bytes((_TEXT_HEAD, 126)) + num_bytes.to_bytes(2)
    return bytes((_TEXT_HEAD, 127)) + num_bytes.to_bytes(8)
