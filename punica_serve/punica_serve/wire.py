"""Websocket links of typed messages: frontend <-> scheduler <-> runner.

The one place that knows websockets outside the public HTTP API. Frontends and runners ``keep_dialling`` the scheduler,
which ``listen``s and ``accept``s; both ends then hold a ``Channel``. The life of a link:

    dialling end                         listening end
    connect ──────────────────────────▶  listen
    hello ────────────────────────────▶  accept: version and cluster token are checked
    dial  ◀────────────────────────────  Welcome, or Refused and closed
    session(channel, welcome)            session(channel)

A session returns when it has iterated to the end of its channel; whatever ends a session closes its link.
"""

import asyncio
import contextlib
import hmac
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Never, Self

from websockets.asyncio.client import connect
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidURI, WebSocketException
from websockets.frames import CloseCode

from punica_serve.backoff import Backoff
from punica_serve.errors import ClusterUnavailable, ConfigError, ProtocolError
from punica_serve.protocol import (
    MAX_FRAME_BYTES,
    MAX_QUEUED_BYTES,
    PROTOCOL_VERSION,
    Decoder,
    FrontendHello,
    Message,
    Refused,
    RunnerHello,
    Welcome,
    WireError,
    encode,
)

log = logging.getLogger(__name__)

#: A peer that vanished without a word is noticed after at most the sum of both.
PING_INTERVAL_S = 5.0
PING_TIMEOUT_S = 10.0
#: From the start of the connection to the hello, and from the hello to its answer.
HANDSHAKE_TIMEOUT_S = 10.0
#: For what is queued to leave, and then for the closing handshake.
CLOSE_TIMEOUT_S = 1.0
#: A scheduler that restarts is back within a second or so, and one that stays away is not to be stormed.
RECONNECT_FIRST_S = 0.1
RECONNECT_HIGHEST_S = 5.0

# websockets' own lines (every open and close; a traceback for every port scan) say nothing that ours don't.
_socket_log = logging.getLogger(f"{__name__}.socket")
_socket_log.setLevel(logging.CRITICAL)
_SOCKET_OPTIONS: dict[str, Any] = {
    "compression": None,  # token ids don't compress, and the step loop's peers have better to do
    "max_size": MAX_FRAME_BYTES,
    "ping_interval": PING_INTERVAL_S,
    "ping_timeout": PING_TIMEOUT_S,
    "open_timeout": HANDSHAKE_TIMEOUT_S,
    "close_timeout": CLOSE_TIMEOUT_S,
    "logger": _socket_log,
}


class HandshakeRefused(ProtocolError):
    """The scheduler answered Refused: another major version, or the wrong cluster token. The message is its own."""


class Channel:
    """One open link: sends any message, and iterates over those of ``union`` that arrive until the link ends.

    An async context manager: it is open inside, and closed with nothing left behind outside.
    """

    def __init__(self, socket: Connection, union: Any) -> None:
        self._socket = socket
        self._decode = Decoder(union)
        #: None is the last: what comes before it still leaves.
        self._outgoing: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._num_queued_bytes = 0
        self._is_open = True
        self._cut_reason: str | None = None
        self._close_reason = ""
        self._writer: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._writer = asyncio.create_task(self._write())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def send(self, message: Message) -> None:
        """Queues a message, without ever waiting. On a link that has ended it is dropped.

        Cuts the link when the peer reads so slowly that MAX_QUEUED_BYTES wait. Raises ProtocolError for a message
        beyond MAX_FRAME_BYTES; the link then goes on.
        """
        if not self._is_open:
            return
        frame = encode(message)
        if len(frame) > MAX_FRAME_BYTES:
            raise ProtocolError(
                f"a {type(message).__name__} of {len(frame)} bytes does not fit a frame of {MAX_FRAME_BYTES}"
            )
        self._num_queued_bytes += len(frame)
        self._outgoing.put_nowait(frame)
        if self._num_queued_bytes > MAX_QUEUED_BYTES:
            self._cut(f"the peer reads too slowly: {self._num_queued_bytes} bytes wait for it")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        """The next message; the end of the link ends the iteration. Raises ProtocolError for a broken frame."""
        try:
            frame = await self._socket.recv(decode=False)
        except ConnectionClosed:
            raise StopAsyncIteration from None
        return self._decode(frame)

    async def receive(self, timeout_s: float) -> Any:
        """The next message. Raises ProtocolError when the link ends or the time is up first."""
        try:
            async with asyncio.timeout(timeout_s):
                return await anext(self)
        except TimeoutError:
            raise ProtocolError(f"the peer said nothing for {timeout_s:g} s") from None
        except StopAsyncIteration:
            raise ProtocolError(f"the link ended too early: {self.end_reason}") from None

    @property
    def end_reason(self) -> str:
        """Why the link ended, in words for a log line."""
        if self._cut_reason is not None:
            return self._cut_reason
        if self._socket.close_code is None:
            return "it has not ended"
        if self._socket.close_code == CloseCode.ABNORMAL_CLOSURE:
            given_up = self._socket.protocol.close_sent  # by our end, as for a ping without an answer
            return "the connection broke" + (f": {given_up.reason}" if given_up else "")
        return f"closed with code {self._socket.close_code} {self._socket.close_reason}".rstrip()

    def end(self, reason: str = "") -> None:
        """Lets what is queued leave, then closes, without waiting for it: the iteration ends at both ends."""
        if self._is_open:
            self._close_reason = _close_reason(reason)
        self._is_open = False
        self._outgoing.put_nowait(None)

    async def close(self, reason: str = "") -> None:
        """As ``end``, and waits until it is done; what takes longer than CLOSE_TIMEOUT_S twice is cut."""
        assert self._writer is not None, "a channel is open inside its context only"
        self.end(reason)
        try:
            await asyncio.wait([self._writer], timeout=2 * CLOSE_TIMEOUT_S)
        finally:
            self._socket.transport.abort()
            self._writer.cancel()
            await asyncio.wait([self._writer])
            await self._socket.wait_closed()

    def _cut(self, reason: str) -> None:
        self._is_open = False
        self._cut_reason = reason
        self._socket.transport.abort()

    async def _write(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            while (frame := await self._outgoing.get()) is not None:
                await self._socket.send(frame)
                self._num_queued_bytes -= len(frame)
        self._is_open = False
        await self._socket.close(CloseCode.NORMAL_CLOSURE, self._close_reason)


@contextlib.asynccontextmanager
async def dial(url: str, hello: FrontendHello | RunnerHello, union: Any) -> AsyncIterator[tuple[Channel, Welcome]]:
    """A link to the scheduler, through the handshake.

    Raises ConfigError for a URL that is none, ClusterUnavailable when nobody answers there, HandshakeRefused when the
    scheduler won't have us, and ProtocolError when its answer can't be right.
    """
    try:
        # proxy=None: the peers of a cluster reach each other directly, whatever the environment says of proxies.
        socket = await connect(url, proxy=None, **_SOCKET_OPTIONS)
    except (InvalidURI, ValueError) as error:
        raise ConfigError(f"scheduler URL {url!r} is not of the form ws://HOST:PORT: {error}") from error
    except (OSError, WebSocketException) as error:
        raise ClusterUnavailable(f"the scheduler at {url} can't be reached: {_reason(error)}") from error
    async with Channel(socket, union) as channel:
        channel.send(hello)
        answer = await channel.receive(HANDSHAKE_TIMEOUT_S)
        if isinstance(answer, Refused):
            raise HandshakeRefused(answer.error.message)
        if not isinstance(answer, Welcome):
            raise ProtocolError(f"the scheduler at {url} answered a hello with {type(answer).__name__}")
        yield channel, answer


async def keep_dialling(
    url: str,
    hello: Callable[[], FrontendHello | RunnerHello],
    union: Any,
    session: Callable[[Channel, Welcome], Awaitable[None]],
) -> Never:
    """Runs ``session`` on one link to the scheduler after the other, until cancelled.

    A lost link, or a ProtocolError of the session, is logged once and dialled again: with waits from
    RECONNECT_FIRST_S up to RECONNECT_HIGHEST_S, or always with the longest where the scheduler refused us. Any other
    error of the session is our bug and gets out, as a ConfigError of the URL does.
    """
    backoff = Backoff(RECONNECT_FIRST_S, RECONNECT_HIGHEST_S, reset_after_s=RECONNECT_HIGHEST_S)
    logged: str | None = None  # the kind of failure that has been logged since the last link
    while True:
        connected_at: float | None = None
        try:
            async with dial(url, hello(), union) as (channel, welcome):
                connected_at = time.monotonic()
                log.info("connected to the scheduler at %s", url)
                logged = None
                await session(channel, welcome)
            kind, failure = "lost", f"lost the link to the scheduler at {url}: {channel.end_reason}"
        except HandshakeRefused as error:
            kind, failure = "refused", f"the scheduler at {url} refused us: {error}"
        except (ClusterUnavailable, ProtocolError) as error:
            kind, failure = "lost", error.message
        if kind != logged:
            log.warning("%s; dialling again until it answers", failure)
            logged = kind
        wait_s = backoff.after(0.0 if connected_at is None else time.monotonic() - connected_at)
        await asyncio.sleep(RECONNECT_HIGHEST_S if kind == "refused" else wait_s)


@contextlib.asynccontextmanager
async def listen(host: str, port: int, union: Any, session: Callable[[Channel], Awaitable[None]]) -> AsyncIterator[int]:
    """Accepts links and runs ``session`` on each; yields the port, which matters where 0 asked for a free one.

    A ProtocolError of a session ends that session's link alone, with its message as the reason. Leaving the context
    closes all links and waits for their sessions. Raises ConfigError where the address can't be listened on.
    """

    async def handle(socket: ServerConnection) -> None:
        async with Channel(socket, union) as channel:
            try:
                await session(channel)
            except ProtocolError as error:
                log.warning("cut the link from %s: %s", socket.remote_address, error)
                await channel.close(error.message)

    try:
        server = await serve(handle, host, port, **_SOCKET_OPTIONS)
    except OSError as error:
        raise ConfigError(f"can't listen on {host}:{port}: {_reason(error)}; choose another address or port") from error
    async with server:
        yield next(iter(server.sockets)).getsockname()[1]


async def accept(
    channel: Channel,
    *,
    token: str,
    incarnation: int,
    admit: Callable[[FrontendHello | RunnerHello], None] = lambda _: None,
) -> FrontendHello | RunnerHello:
    """Reads and checks a new link's hello, and answers it.

    Raises ProtocolError, after Refused has been sent, for another major version, the wrong token, or whatever ``admit``
    raises it for; and for a peer that says nothing in time, or anything but a hello.
    """
    hello = await channel.receive(HANDSHAKE_TIMEOUT_S)
    if not isinstance(hello, FrontendHello | RunnerHello):
        raise ProtocolError(f"a link must start with a hello, not with {type(hello).__name__}")
    try:
        _check_hello(hello, token)
        admit(hello)
    except ProtocolError as error:
        channel.send(Refused(WireError.of(error)))
        raise
    channel.send(Welcome(PROTOCOL_VERSION, incarnation))
    return hello


def _check_hello(hello: FrontendHello | RunnerHello, token: str) -> None:
    if hello.version[0] != PROTOCOL_VERSION[0]:
        theirs, ours = (".".join(map(str, version)) for version in (hello.version, PROTOCOL_VERSION))
        raise ProtocolError(
            f"the peer speaks protocol {theirs}, the scheduler {ours}; run the same release", param="version"
        )
    if not hmac.compare_digest(hello.token.encode(), token.encode()):
        raise ProtocolError(
            "the peer's cluster token is not the scheduler's; start both with the same one", param="token"
        )


def _reason(error: Exception) -> str:
    """The system's own words where there are any; asyncio's repeat the address."""
    if isinstance(error, OSError) and error.errno and error.strerror:
        return os.strerror(error.errno) if error.errno > 0 else error.strerror  # name look-up has negative ones
    return str(error) or type(error).__name__


def _close_reason(reason: str) -> str:
    """As much of it as a close frame holds: 123 bytes of UTF-8."""
    return reason.encode()[:123].decode(errors="ignore")
