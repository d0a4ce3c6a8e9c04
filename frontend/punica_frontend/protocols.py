"""uvicorn's two protocols, with bounds on what one client may cost: time for a head, time to take an answer, and room.

A client that stops reading fills the transport's buffer (64 KiB) and the kernel's; from then on nothing is written for
it, its requests' tokens wait merged in their LiveRequests, and after STALL_TIMEOUT_S its connection is ended.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode
from websockets.protocol import State

from punica_frontend.corked import CorkedTransport
from punica_frontend.errors import answer_of
from punica_frontend.handshake import Handshake
from punica_frontend.metrics.figures import Cut
from punica_frontend.strict_http import MAX_HEADER_BYTES, StrictConnection
from punica_serve.errors import ClusterUnavailable, InvalidRequest

log = logging.getLogger(__name__)

#: From the first byte of a request, or from the connection's start, to the end of its headers.
HEAD_TIMEOUT_S = 10.0
#: A client may go on sending the body of a request that was answered without it for so long; then it is cut.
REST_TIMEOUT_S = 5.0
#: A client that does not take a buffer of its answer in so long is cut.
STALL_TIMEOUT_S = 30.0
#: For a websocket that is ended for its stall to take what is left, and the reason.
CLOSE_TIMEOUT_S = 5.0

#: So many connections beyond the limit are told so; more are cut without a word, or they would take all open files.
NUM_TOLD = 64

#: Of what a websocket has received, parsed in one turn of the event loop.
SLICE_BYTES = 8 << 10

_UNREADABLE = (
    "this is no request of HTTP/1.1: its first line, a header or the body is malformed, it has both Content-Length and "
    f"Transfer-Encoding, or its first line and headers have more than {MAX_HEADER_BYTES} bytes"
)

_TEXT_HEAD = 0x81  # one whole message of text


class Deadline:
    """Calls ``act`` so long after ``start``, unless ``cancel`` comes first."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_s: float, act: Callable[[], None]) -> None:
        self._loop = loop
        self._timeout_s = timeout_s
        self._act = act
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Goes on where it was when it has started already."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s, self._act)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class GuardedHttp(H11Protocol):
    """One HTTP connection. The server's ``limit_concurrency`` counts connections; one beyond it is told so."""

    def __init__(self, num_cut: Counter[Cut], **parts: Any) -> None:
        """``num_cut`` counts the connections that are ended for their client; uvicorn brings the other ``parts``."""
        super().__init__(**parts)
        self._num_cut = num_cut

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.conn = StrictConnection()
        self._stall = Deadline(self.loop, STALL_TIMEOUT_S, partial(self._cut, "stalled"))
        self._head = Deadline(self.loop, HEAD_TIMEOUT_S, partial(self._cut, "head_late"))
        self._head.start()
        self._rest = Deadline(self.loop, REST_TIMEOUT_S, partial(self._cut, "body_late"))
        # uvicorn's own check answers in plain text, and lets websockets through.
        max_connections, self.limit_concurrency = self.limit_concurrency, None
        num_beyond = 0 if max_connections is None else len(self.connections) - max_connections
        self._is_crowded = num_beyond > 0
        if self._is_crowded:
            self.app = cast(Any, _answer_crowded)
            self._num_cut["crowded"] += 1
        if num_beyond > NUM_TOLD:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head.cancel()
        self._rest.cancel()
        self._stall.cancel()
        _count_if_stalled(self._num_cut, exc)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self._head.start()
        else:
            self._head.cancel()
        if self.conn.their_state is not h11.SEND_BODY:
            self._rest.cancel()

    def send_400_response(self, msg: str) -> None:
        """To what is no request. Nothing goes on after it: nobody knows where the next one would begin."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()  # in the middle of an answer
            return
        answer = answer_of(InvalidRequest(_UNREADABLE))
        headers = [*answer.raw_headers, (b"connection", b"close")]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def on_response_complete(self) -> None:
        """What is left of a body whose request was refused is read on, or the client would not read the refusal."""
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            self._rest.start()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall.start()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stall.cancel()

    def _should_upgrade(self) -> bool:
        return not self._is_crowded and super()._should_upgrade()

    def _cut(self, reason: Cut) -> None:
        """The request of a client that is cut ends as if the client had left."""
        self._num_cut[reason] += 1
        self.transport.abort()


class GuardedWebSocket(WebSocketsSansIOProtocol):
    """One websocket. Messages of one turn of the event loop leave together.

    What comes in is parsed a slice at a time, and only once the application has taken the messages of the slice before
    and the client takes what it is sent: a quarter of a megabyte of empty messages would hold everybody up for half a
    second, and the answers to a flood of pings would pile up.
    """

    def __init__(self, num_cut: Counter[Cut], **parts: Any) -> None:
        """As an HTTP connection's."""
        super().__init__(**parts)
        self._num_cut = num_cut

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._corked = CorkedTransport(cast(asyncio.Transport, transport), self.loop)
        super().connection_made(cast(asyncio.Transport, self._corked))
        self.conn: Handshake = Handshake(max_size=self.config.ws_max_size, logger=self.logger)
        self._unparsed = bytearray()
        self._will_parse = False
        self._stall = Deadline(self.loop, STALL_TIMEOUT_S, self._end_stalled)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stall.cancel()
        _count_if_stalled(self._num_cut, exc)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall.start()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stall.cancel()
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
        """Text, which is nearly all that is sent, goes the short way: a few bytes of head and out."""
        text = message.get("text")
        if text is None or not self.handshake_complete:
            await super().send(message)
            # A whole refusal is the end of a handshake too; uvicorn would log an error of ours.
            self.handshake_complete = self.handshake_complete or self.close_sent
            self._parse_soon()
            return
        if not self.writable.is_set():
            await self.writable.wait()
        if self.disconnected or self.conn.state is not State.OPEN:
            raise ClientDisconnected()
        payload = text.encode()
        self.transport.write(_head(len(payload)) + payload)

    def _may_parse(self) -> bool:
        """After a close of ours uvicorn drops messages, and the client's close must be found behind them."""
        return bool(self._unparsed) and (self.queue.empty() or self.close_sent) and self.writable.is_set()

    def _parse_soon(self) -> None:
        """In the next turn of the loop, so that everybody else has theirs."""
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
        """uvicorn would leave such a client without an answer, and its connection open."""
        self.handshake_complete = self.close_sent = True
        self.transport.write(self.conn.refusal())
        self.transport.close()

    def _end_stalled(self) -> None:
        """The client learns the reason if it reads on within CLOSE_TIMEOUT_S; its requests end now."""
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


def _count_if_stalled(num_cut: Counter[Cut], exc: Exception | None) -> None:
    """The kernel may be first to cut a client that takes nothing, or that is gone without a word."""
    if isinstance(exc, TimeoutError):
        num_cut["stalled"] += 1


def _head(num_bytes: int) -> bytes:
    """Of an unmasked websocket message of text (RFC 6455, section 5.2)."""
    if num_bytes < 126:
        return bytes((_TEXT_HEAD, num_bytes))
    if num_bytes < 1 << 16:
        return bytes((_TEXT_HEAD, 126)) + num_bytes.to_bytes(2)
    return bytes((_TEXT_HEAD, 127)) + num_bytes.to_bytes(8)


async def _answer_crowded(scope: Scope, receive: Receive, send: Send) -> None:
    """An ASGI application for connections beyond the limit."""
    error = ClusterUnavailable("this frontend holds as many connections as it can; try again later, or another one")
    response = answer_of(error)
    response.headers["Connection"] = "close"
    await response(scope, receive, send)
