"""An HTTP connection on uvicorn's undocumented parts."""

import asyncio
import http
from collections import Counter
from functools import partial
from typing import Any, cast

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from punica_frontend.api.errors import answer_of, refusal_of
from punica_frontend.http.body_pieces import EXTENSION
from punica_frontend.http.corked import CorkedTransport
from punica_frontend.http.deadline import Deadline
from punica_frontend.http.lingering import LingeringTransport
from punica_frontend.http.stalled_clients import STALL_TIMEOUT_S, count_if_stalled
from punica_frontend.http.strict_http import MAX_HEADER_BYTES, StrictConnection
from punica_frontend.metrics.metrics import CutReason
from punica_serve.errors import ClusterUnavailable

#: The most of an answer that waits in this process for its client.
MAX_BUFFER_BYTES = 64 << 10
#: From the first byte of a request, or from the connection's start, to the end of its headers.
HEAD_TIMEOUT_S = 10.0
#: How long a client may keep sending the body of a request that was already answered.
REST_TIMEOUT_S = 5.0
#: How many connections beyond the limit get an answer. More are cut silently, or they would use up all open files.
MAX_REFUSALS = 64

_UNREADABLE = (
    "this is not a valid HTTP/1.1 request: its first line, a header or the body is malformed, its target is neither a "
    "path nor an http URL, it lacks a Host header or has several, it has both Content-Length and Transfer-Encoding, or "
    f"its first line and headers are over {MAX_HEADER_BYTES} bytes"
)
_UNKNOWN_VERSION = "this server speaks HTTP/1.1 and HTTP/1.0; send the request as one of these"


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
        count_if_stalled(self._num_cut, exc)
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
        try:
            await cast(ASGIApp, self._application)(scope, receive, send)
        finally:
            # It has the cycle, and the cycle has the scope: a request would wait for the garbage collector.
            del scope["extensions"]

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


async def _refuse_connection(scope: Scope, receive: Receive, send: Send) -> None:
    """An ASGI application for connections beyond the limit."""
    error = ClusterUnavailable(
        "this frontend has as many connections as it can hold; try again later, or try another frontend"
    )
    response = answer_of(error)
    response.headers["Connection"] = "close"
    await response(scope, receive, send)
