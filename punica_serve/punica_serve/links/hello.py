"""How links between processes are set up: frontend <-> scheduler <-> runner.

Frontends and runners ``keep_dialling`` the scheduler, which ``listen``s and ``accept``s; both ends then hold a
``Channel``. The life of a link:

    dialling end                         listening end
    connect ──────────────────────────▶  listen
    hello ────────────────────────────▶  accept: checks version and cluster token
    dial  ◀────────────────────────────  Welcome, or Refused and closed
    session(channel, welcome)            session(channel)

A session calls its channel's ``serve`` until the link ends. The link is closed when its session ends.
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

from punica_serve.config.links_section import LinksConfig
from punica_serve.errors import ClusterUnavailable, ConfigError, ProtocolError
from punica_serve.errors.reasons import reason_of
from punica_serve.links.backoff import Backoff
from punica_serve.links.channel import CLOSE_TIMEOUT_S, Channel
from punica_serve.links.frame_stream import AcceptedSocket, DialledSocket
from punica_serve.links.scheduler_url import current_url
from punica_serve.protocol import (
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    FrontendHello,
    Refused,
    RunnerHello,
    Welcome,
    WireError,
)

log = logging.getLogger(__name__)

#: From the connection to the hello, and from the hello to its answer.
HANDSHAKE_TIMEOUT_S = 10.0
#: A scheduler that restarts is back within about a second; one that stays away must not be flooded with retries.
RECONNECT_FIRST_S = 0.1
RECONNECT_HIGHEST_S = 5.0

_DEFAULT_LINKS = LinksConfig()

# websockets logs every open and close, and a traceback for every port scan. Our own lines say the same.
_socket_log = logging.getLogger(f"{__name__}.socket")
_socket_log.setLevel(logging.CRITICAL)
_SOCKET_OPTIONS: dict[str, Any] = {
    "compression": None,  # token ids don't compress, and compressing takes CPU time from the step loop's peers
    "max_size": MAX_FRAME_BYTES,
    "ping_interval": None,  # a peer that is busy sending answers pings late; the channel has heartbeats instead
    "open_timeout": HANDSHAKE_TIMEOUT_S,
    "close_timeout": CLOSE_TIMEOUT_S,
    "logger": _socket_log,
}


class HandshakeRefused(ProtocolError):
    """The scheduler answered Refused, because of another major version or a wrong cluster token; with its message."""


@contextlib.asynccontextmanager
async def dial(
    url: str,
    hello: FrontendHello | RunnerHello,
    union: Any,
    links: LinksConfig = _DEFAULT_LINKS,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[Channel, Welcome]]:
    """A link to the scheduler, after the handshake. The URL is wss:// with ``tls``, and ws:// without.

    Raises ConfigError for any other URL, ClusterUnavailable if no trusted scheduler answers there, HandshakeRefused if
    the scheduler refuses, and ProtocolError if its answer is invalid.
    """
    scheme = "wss" if tls else "ws"
    try:
        if urlsplit(url).scheme != scheme:
            raise ValueError("with `tls` in the config it must start with wss://, else with ws://")
        # proxy=None: the peers of a cluster reach each other directly, whatever proxies the environment names.
        socket: Any = await connect(url, proxy=None, ssl=tls, create_connection=DialledSocket, **_SOCKET_OPTIONS)
    except (OSError, WebSocketException, ValueError) as error:
        # An untrusted certificate is a ValueError too, but the URL is right.
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
    """Keeps a link to the scheduler, and runs ``session`` on each new one, until cancelled.

    The URL may be in a file (see ``scheduler_url``), which is read before each dial. After a lost link or a
    ProtocolError of the session it dials again, with waits from RECONNECT_FIRST_S up to RECONNECT_HIGHEST_S, or always
    the longest if the scheduler refused. It logs the first failure and the recovery. Raises ConfigError for a wrong
    URL; any other error of the session is a bug, and is raised too.
    """
    backoff = Backoff(RECONNECT_FIRST_S, RECONNECT_HIGHEST_S, reset_after_s=RECONNECT_HIGHEST_S)
    logged: str | None = None  # the kind of failure that was logged since the last link
    while True:
        connected_at: float | None = None
        try:
            url = current_url(scheduler_url)
            async with dial(url, hello(), union, links, tls) as (channel, welcome):
                connected_at = time.monotonic()
                # The end of a failure is as important as the failure.
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
    """Accepts links and runs ``session`` on each. Yields the port; port 0 asks for a free one.

    A ProtocolError of a session ends only that session's link, with its message as the reason. Leaving the context
    closes all links and waits for their sessions. Raises ConfigError if it can't listen on the address.
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

    Raises ProtocolError, after it has sent Refused, for another major version, for a wrong token, or if ``admit``
    raises it. Also raises it if the peer sends nothing in time, or anything but a hello.
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
