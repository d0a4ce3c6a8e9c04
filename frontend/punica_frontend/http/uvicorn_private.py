"""The classes that build on uvicorn's undocumented parts: two protocols and the server. All such uses are here.

No setting of uvicorn bounds what one client may cost, so these protocols do: time for a head, time to take an answer,
and memory. A client that stops reading fills the transport's buffer (MAX_BUFFER_BYTES) and the kernel's. From then on
nothing is written for it, its requests' tokens wait merged in their LiveRequests, and its connection is ended after
STALL_TIMEOUT_S.

pyproject.toml bounds uvicorn's version, and tests/frontend/http/test_uvicorn_parts.py names a part that is missing.
"""

import asyncio
import contextlib
import http
import logging
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode
from websockets.protocol import State

from punica_frontend.api.errors import answer_of, refusal_of
from punica_frontend.http.body_pieces import EXTENSION
from punica_frontend.http.corked import CorkedTransport
from punica_frontend.http.deadline import Deadline
from punica_frontend.http.handshake import Handshake
from punica_frontend.http.lingering import LingeringTransport
from punica_frontend.http.strict_http import MAX_HEADER_BYTES, StrictConnection
from punica_frontend.metrics.metrics import CutReason
from punica_serve.errors import ClusterUnavailable

log = logging.getLogger(__name__)

#: The most of an answer that waits in this process for its client.
MAX_BUFFER_BYTES = 64 << 10
#: From the first byte of a request, or from the connection's start, to the end of its headers.
HEAD_TIMEOUT_S = 10.0
#: How long a client may keep sending the body of a request that was already answered.
REST_TIMEOUT_S = 5.0
#: How long a client may take nothing of a full buffer.
STALL_TIMEOUT_S = 30.0
#: How long a stalled websocket has to take the rest and the close reason.
CLOSE_TIMEOUT_S = 5.0

#: How many connections beyond the limit get an answer. More are cut silently, or they would use up all open files.
MAX_REFUSALS = 64

#: How much received data of a websocket is parsed in one turn of the event loop.
SLICE_BYTES = 8 << 10

#: How long answers have to finish when the frontend stops; open connections are then cut.
SHUTDOWN_TIMEOUT_S = 2.0
#: How long a client may take for its TLS handshake.
HANDSHAKE_TIMEOUT_S = 10.0

_UNREADABLE = (
    "this is not a valid HTTP/1.1 request: its first line, a header or the body is malformed, its target is neither a "
    "path nor an http URL, it has both Content-Length and Transfer-Encoding, or its first line and headers are over "
    f"{MAX_HEADER_BYTES} bytes"
)
_UNKNOWN_VERSION = "this server speaks HTTP/1.1 and HTTP/1.0; send the request as one of these"

_TEXT_HEAD = 0x81  # the final frame of a text message


class GuardedHttp(H11Protocol):
    """One HTTP connection. The server's ``limit_concurrency`` counts connections; those beyond it get a 503.

    An answer's head leaves together with what follows at once, and its last piece together with its end.
    """

    def __init__(self, num_cut: Counter[CutReason], **options: Any) -> None:
        """``num_cut`` counts the connections ended here; uvicorn passes the ``options``."""
        super().__init__(**options)
        self._num_cut = num_cut
        self._application, self.app = self.app, cast(Any, self._run_application)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._corked = CorkedTransport(transport, self.loop)
        self._lingering = LingeringTransport(self._corked, self._is_client_sending, self._drop_rest)
        super().connection_made(cast(asyncio.Transport, self._lingering))
        transport.set_write_buffer_limits(MAX_BUFFER_BYTES)  # asyncio's default for TLS is eight times as much
        self.conn: StrictConnection = StrictConnection()
        self._stall_deadline = Deadline(self.loop, STALL_TIMEOUT_S, partial(self._cut, "stalled"))
        self._head_deadline = Deadline(self.loop, HEAD_TIMEOUT_S, partial(self._cut, "header_timeout"))
        self._head_deadline.start()
        self._body_deadline = Deadline(self.loop, REST_TIMEOUT_S, partial(self._cut, "body_late"))
        # uvicorn's own check answers in plain text, and lets websockets through.
        max_connections, self.limit_concurrency = self.limit_concurrency, None
        num_beyond = 0 if max_connections is None else len(self.connections) - max_connections
        self._is_over_limit = num_beyond > 0
        if self._is_over_limit:
            self.app = cast(Any, _refuse_connection)
            self._num_cut["too_many_connections"] += 1
        if num_beyond > MAX_REFUSALS:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_deadline.cancel()
        self._body_deadline.cancel()
        self._stall_deadline.cancel()
        _count_if_stalled(self._num_cut, exc)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._lingering.is_lingering:
            return
        super().data_received(data)
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self._head_deadline.start()
        else:
            self._head_deadline.cancel()
        if self.conn.their_state is not h11.SEND_BODY and not self._lingering.is_lingering:
            self._body_deadline.cancel()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """A websocket closes by messages of its own, and corks by itself."""
        self._corked.uncork()
        self.transport = self._corked.inner
        super().handle_websocket_upgrade(event)

    def send_400_response(self, msg: str) -> None:
        """Answers an unreadable request, and closes: nothing says where the next request would begin."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()  # in the middle of an answer
            return
        status, message = (505, _UNKNOWN_VERSION) if self.conn.is_unknown_version else (400, _UNREADABLE)
        answer = refusal_of(status, message)
        headers = [*answer.raw_headers, (b"connection", b"close")]
        for event in (
            h11.Response(status_code=status, headers=headers, reason=http.HTTPStatus(status).phrase.encode()),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def on_response_complete(self) -> None:
        """Keeps reading the body of a refused request, or the client might never read the refusal."""
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            self._body_deadline.start()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_deadline.start()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stall_deadline.cancel()

    async def _run_application(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Offers the application the short way for pieces."""
        scope["extensions"] = {EXTENSION: _CyclePieces(self, self.cycle)}
        await cast(ASGIApp, self._application)(scope, receive, send)

    def _is_client_sending(self) -> bool:
        """The body of a request, or what is no request."""
        return self.conn.their_state in (h11.SEND_BODY, h11.ERROR)

    def _drop_rest(self) -> None:
        self._head_deadline.cancel()
        self._unset_keepalive_if_required()
        self._body_deadline.start()

    def _should_upgrade(self) -> bool:
        return not self._is_over_limit and super()._should_upgrade()

    def _cut(self, reason: CutReason) -> None:
        """Ends the connection. Its request ends as if the client had left."""
        self._num_cut[reason] += 1
        self.transport.abort()


class _CyclePieces:
    """A PieceWriter that does for a piece of a body what the ``send`` of uvicorn's cycle does."""

    def __init__(self, connection: GuardedHttp, cycle: RequestResponseCycle) -> None:
        self._connection = connection
        self._transport = connection._corked
        self._flow = connection.flow
        self._cycle = cycle

    @property
    def is_writable(self) -> bool:
        return not (self._flow.write_paused or self._cycle.disconnected)

    def write(self, piece: bytes) -> None:
        """The tokens of a batch leave one by one, not when all of them are written."""
        self._transport.write_now(self._connection.conn.piece(piece))

    async def send(self, piece: bytes) -> None:
        if self._flow.write_paused and not self._cycle.disconnected:
            await self._flow.drain()
        if not self._cycle.disconnected:
            self._transport.write(self._connection.conn.piece(piece))


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
        _count_if_stalled(self._num_cut, exc)
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


class EmbeddedServer(uvicorn.Server):
    """A server that leaves signals to its caller: it stops when ``should_exit`` is set."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Replaces uvicorn's, for listening sockets only, with a TLS handshake timeout shorter than its minute."""
        await self.lifespan.startup()
        config, loop = self.config, asyncio.get_running_loop()
        make: Callable[..., asyncio.Protocol] = config.http_protocol_class

        def make_protocol() -> asyncio.Protocol:
            return make(config=config, server_state=self.server_state, app_state=self.lifespan.state, _loop=loop)

        timeout_s = HANDSHAKE_TIMEOUT_S if config.ssl else None
        self.servers = [
            await loop.create_server(
                make_protocol, sock=listener, ssl=config.ssl, backlog=config.backlog, ssl_handshake_timeout=timeout_s
            )
            for listener in sockets or ()
        ]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Cuts connections still open after SHUTDOWN_TIMEOUT_S; their handlers end as if the client had left."""
        cutting = asyncio.get_running_loop().call_later(SHUTDOWN_TIMEOUT_S, self._cut_connections)
        try:
            await super().shutdown(sockets)
        finally:
            cutting.cancel()

    def _cut_connections(self) -> None:
        for connection in self.server_state.connections:
            connection.transport.abort()


def _count_if_stalled(num_cut: Counter[CutReason], exc: Exception | None) -> None:
    """Counts a client that the kernel cut first, because it was dead or took nothing."""
    if isinstance(exc, TimeoutError):
        num_cut["stalled"] += 1


def _message_head(num_bytes: int) -> bytes:
    """Returns the header of an unmasked websocket text message (RFC 6455, section 5.2)."""
    if num_bytes < 126:
        return bytes((_TEXT_HEAD, num_bytes))
    if num_bytes < 1 << 16:
        return bytes((_TEXT_HEAD, 126)) + num_bytes.to_bytes(2)
    return bytes((_TEXT_HEAD, 127)) + num_bytes.to_bytes(8)


async def _refuse_connection(scope: Scope, receive: Receive, send: Send) -> None:
    """An ASGI application for connections beyond the limit."""
    error = ClusterUnavailable(
        "this frontend has as many connections as it can hold; try again later, or try another frontend"
    )
    response = answer_of(error)
    response.headers["Connection"] = "close"
    await response(scope, receive, send)
