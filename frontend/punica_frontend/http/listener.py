"""The HTTP server's listening socket, and how many connections a process can hold."""

import contextlib
import logging
import resource
import socket
import sys
from collections.abc import Iterator

from punica_serve.errors import ConfigError
from punica_serve.errors.reasons import reason_of
from punica_serve.links.addresses import NO_ADDRESS

log = logging.getLogger(__name__)

#: The kernel cuts a client that acknowledges nothing for this long.
SEND_TIMEOUT_S = 60.0
#: The kernel's send buffer for each client; by default it would be megabytes.
SEND_BUFFER_BYTES = 128 << 10
#: The kernel probes a connection that is idle for this long, and cuts it after three unanswered probes.
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 60, 20, 3
BACKLOG = 2_048

#: Files reserved for other uses: the scheduler link, adapters being read, the log.
NUM_RESERVED_FILES = 256


@contextlib.contextmanager
def bind(host: str, port: int) -> Iterator[socket.socket]:
    """A listening socket, closed at the end. Raises ConfigError that names the address."""
    listener: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _guard(listener)
        listener.bind(address)
        listener.listen(BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:
        if listener:
            listener.close()
        reason = NO_ADDRESS if isinstance(error, UnicodeError) else reason_of(error)
        message = f"can't listen on {host}:{port}: {reason}; choose another with `--host` or `--port`"
        raise ConfigError(message, param="port") from error
    with listener:
        yield listener


def _guard(listener: socket.socket) -> None:
    """Sets options against dead or stalled clients; connections inherit them."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        # The kernel counts from the last byte acknowledged, and resets the connection; a close from here would wait for
        # the rest to be taken. Other systems have no such option.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * SEND_TIMEOUT_S))
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)


def raise_file_limit() -> int:
    """Raises this process's limit of open files as far as allowed; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # some systems report no limit, and then refuse
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def num_connections(wanted: int, file_limit: int) -> int:
    """Returns how many of the ``wanted`` connections fit the limit of open files. Logs a warning if not all do."""
    possible = max(1, file_limit - NUM_RESERVED_FILES)
    if possible < wanted:
        log.warning(
            "the limit of %d open files leaves room for %d connections, but `frontend.max_connections` is %d; "
            "raise it (ulimit -n, or LimitNOFILE= of a systemd unit) to %d",
            file_limit,
            possible,
            wanted,
            wanted + NUM_RESERVED_FILES,
        )
    return min(wanted, possible)
