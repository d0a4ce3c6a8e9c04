"""How links between processes come about: frontend <-> scheduler <-> runner.

This and ``channel`` are the places that know websockets outside the public HTTP API. Frontends and runners
``keep_dialling`` the scheduler, which ``listen``s and ``accept``s; both ends then hold a ``Channel``. A link's life:

    dialling end                         listening end
    connect ──────────────────────────▶  listen
    hello ────────────────────────────▶  accept: version and cluster token are checked
    dial  ◀────────────────────────────  Welcome, or Refused and closed
    session(channel, welcome)            session(channel)

A session has its channel ``serve`` what arrives to the end; whatever ends a session closes its link.
"""

import asyncio
import contextlib
import hmac
import logging
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Never
from urllib.parse import urlsplit

from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import InvalidURI, WebSocketException

from punica_serve.backoff import Backoff
from punica_serve.channel import CLOSE_TIMEOUT_S, Channel
from punica_serve.config import LinksConfig
from punica_serve.errors import ClusterUnavailable, ConfigError, ProtocolError
from punica_serve.frame_socket import AcceptedSocket, DialledSocket
from punica_serve.protocol import (
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    FrontendHello,
    Refused,
    RunnerHello,
    Welcome,
    WireError,
)
from punica_serve.reasons import reason_of
from punica_serve.scheduler_url import current_url

log = logging.getLogger(__name__)

#: From the start of the connection to the hello, and from the hello to its answer.
HANDSHAKE_TIMEOUT_S = 10.0
#: A scheduler that restarts is back within a second or so, and one that stays away is not to be stormed.
RECONNECT_FIRST_S = 0.1
RECONNECT_HIGHEST_S = 5.0

_DEFAULT_LINKS = LinksConfig()

# websockets' own lines (every open and close; a traceback for every port scan) say nothing that ours don't.
_socket_log = logging.getLogger(f"{__name__}.socket")
_socket_log.setLevel(logging.CRITICAL)
_SOCKET_OPTIONS: dict[str, Any] = {
    "compression": None,  # token ids don't compress, and the step loop's peers have better to do
    "max_size": MAX_FRAME_BYTES,
    "ping_interval": None,  # a peer that is busy sending answers no ping in time: see the channel's heartbeats
    "open_timeout": HANDSHAKE_TIMEOUT_S,
    "close_timeout": CLOSE_TIMEOUT_S,
    "logger": _socket_log,
}


class HandshakeRefused(ProtocolError):
    """The scheduler answered Refused: another major version, or the wrong cluster token. The message is its own."""


@contextlib.asynccontextmanager
async def dial(
    url: str,
    hello: FrontendHello | RunnerHello,
    union: Any,
    links: LinksConfig = _DEFAULT_LINKS,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[Channel, Welcome]]:
    """A link to the scheduler, through the handshake; with ``tls`` to a wss:// URL, else to a ws:// one.

    Raises ConfigError for a URL that is neither, ClusterUnavailable when nobody that can be trusted answers there,
    HandshakeRefused when the scheduler won't have us, and ProtocolError when its answer can't be right.
    """
    scheme = "wss" if tls else "ws"
    try:
        if urlsplit(url).scheme != scheme:
            raise ValueError("with `tls` in the config it is wss://, and else ws://")
        # proxy=None: the peers of a cluster reach each other directly, whatever the environment says of proxies.
        socket: Any = await connect(url, proxy=None, ssl=tls, create_connection=DialledSocket, **_SOCKET_OPTIONS)
    except (OSError, WebSocketException, ValueError) as error:
        # A certificate that can't be trusted is a ValueError too, but no mistake in the URL.
        if isinstance(error, InvalidURI) or not isinstance(error, OSError | WebSocketException):
            raise ConfigError(f"scheduler URL {url!r} is not of the form {scheme}://HOST:PORT: {error}") from error
        raise ClusterUnavailable(f"the scheduler at {url} can't be reached: {reason_of(error)}") from error
    async with Channel(socket, union, links) as channel:
        channel.send(hello)
        answer = await channel.receive(HANDSHAKE_TIMEOUT_S)
        if isinstance(answer, Refused):
            raise HandshakeRefused(answer.error.message)
        if not isinstance(answer, Welcome):
            raise ProtocolError(f"the scheduler at {url} answered a hello with {type(answer).__name__}")
        yield channel, answer


async def keep_dialling(
    scheduler_url: str,
    hello: Callable[[], FrontendHello | RunnerHello],
    union: Any,
    session: Callable[[Channel, Welcome], Awaitable[None]],
    links: LinksConfig = _DEFAULT_LINKS,
    tls: ssl.SSLContext | None = None,
) -> Never:
    """Runs ``session`` on one link to the scheduler after the other, until cancelled.

    The URL may be in a file, as scheduler_url.py has it, which is read before each dial.
    A lost link, or a ProtocolError of the session, is logged once, as its end is, and dialled again: with waits from
    RECONNECT_FIRST_S up to RECONNECT_HIGHEST_S, or always with the longest where the scheduler refused us. Any other
    error of the session is our bug and gets out, as a ConfigError of the URL does.
    """
    backoff = Backoff(RECONNECT_FIRST_S, RECONNECT_HIGHEST_S, reset_after_s=RECONNECT_HIGHEST_S)
    logged: str | None = None  # the kind of failure that has been logged since the last link
    while True:
        connected_at: float | None = None
        try:
            url = current_url(scheduler_url)
            async with dial(url, hello(), union, links, tls) as (channel, welcome):
                connected_at = time.monotonic()
                # Who was warned of the loss learns that it is over.
                log.log(logging.INFO if logged is None else logging.WARNING, "connected to the scheduler at %s", url)
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
async def listen(
    host: str,
    port: int,
    union: Any,
    session: Callable[[Channel], Awaitable[None]],
    links: LinksConfig = _DEFAULT_LINKS,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    """Accepts links and runs ``session`` on each; yields the port, which matters where 0 asked for a free one.

    A ProtocolError of a session ends that session's link alone, with its message as the reason. Leaving the context
    closes all links and waits for their sessions. Raises ConfigError where the address can't be listened on.
    """

    async def handle(socket: Any) -> None:
        async with Channel(socket, union, links) as channel:
            try:
                await session(channel)
            except ProtocolError as error:
                log.warning("cut the link from %s: %s", socket.remote_address, error)
                await channel.close(error.message)
            except Exception:
                log.exception("a bug of ours ended the link from %s", socket.remote_address)
                raise

    try:
        server = await serve(handle, host, port, ssl=tls, create_connection=AcceptedSocket, **_SOCKET_OPTIONS)
    except OSError as error:
        raise ConfigError(
            f"can't listen on {host}:{port}: {reason_of(error)}; choose another address or port"
        ) from error
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
