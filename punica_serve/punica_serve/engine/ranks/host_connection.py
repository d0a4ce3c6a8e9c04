"""Connections between the hosts of a group: TCP, on which both ends prove that they know the cluster's token.

Each sends random bytes, and a keyed hash of both ends' bytes, so the token itself never travels. The end that dials
proves itself first: from such a hash a weak token could be guessed, so whoever connects gets none. The data after
it is not encrypted, nor are the sums of the ranks: the network must be trusted.

    leader: nonce
    host:   nonce, proof as a host
    leader: proof as the leader, or nothing for a wrong one
"""

import hmac
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from punica_serve.engine.ranks.group_settings import Rendezvous
from punica_serve.engine.ranks.network_interface import listen_at
from punica_serve.errors import ClusterUnavailable, ConfigError, ProtocolError
from punica_serve.errors.reasons import reason_of

#: From the connection to its proof, and from there to its first message.
_HANDSHAKE_TIMEOUT_S = 5.0
_NONCE_BYTES = 32
_REFUSED = b""
_MAX_HANDSHAKE_BYTES, _MAX_FIRST_BYTES = 128, 64 << 10
#: Signs of life within the longest silence, after which the system ends a connection whose other host is gone.
_NUM_KEEPALIVES = 4

TcpConnection: TypeAlias = "Connection[Any, Any]"


class NotProven(ProtocolError):
    """The other end has not proved that it knows the cluster's token."""


def listen(rendezvous: Rendezvous) -> socket.socket:
    """The leader's socket. Raises ConfigError."""
    try:
        sock = listen_at(rendezvous.host, rendezvous.port)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"can't listen on {rendezvous}: {reason_of(error)}; set `runner.rendezvous` to a free port at an address"
            " of host 0, on which this runner must be",
            param="runner.rendezvous",
        ) from error
    address = sock.getsockname()[0]
    if address.startswith("127.") and rendezvous.host not in (address, "localhost"):
        sock.close()
        raise ConfigError(
            f"{rendezvous.host} is {address} on this host, which other hosts can't reach; set `runner.rendezvous` to an"
            " address of this host, such as 10.0.0.1:29500",
            param="runner.rendezvous",
        )
    return sock


def accept(sock: socket.socket, key: bytes, silence_timeout_s: float) -> TcpConnection:
    """The connection of an accepted socket, which it owns, once the other end has proved that it knows the key.

    Raises NotProven, and OSError for a socket that has ended.
    """
    try:
        _keep_alive(sock, silence_timeout_s)
    except OSError:
        sock.close()
        raise
    connection = _connection(sock)
    try:
        with _deadline(connection):
            ours = os.urandom(_NONCE_BYTES)
            connection.send_bytes(ours)
            answer = _receive(connection)
            theirs, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
            if not hmac.compare_digest(proof, _proof(key, b"host", theirs, ours)):
                connection.send_bytes(_REFUSED)
                raise NotProven("its cluster token is not this host's")
            connection.send_bytes(_proof(key, b"leader", theirs, ours))
    except (OSError, EOFError) as error:
        connection.close()
        raise NotProven("it did not prove that it knows the cluster's token") from error
    except BaseException:
        connection.close()
        raise
    return connection


def receive_first(connection: TcpConnection) -> bytes:
    """The first message on a connection that was accepted. Raises ProtocolError if it does not come in time."""
    try:
        with _deadline(connection):
            return connection.recv_bytes(_MAX_FIRST_BYTES)
    except (OSError, EOFError) as error:
        raise ProtocolError("it did not say which host or rank it is") from error


def dial(rendezvous: Rendezvous, silence_timeout_s: float) -> TcpConnection:
    """A connection to the leader, which has proved that it knows the key.

    Raises ClusterUnavailable if nobody answers there, NotProven if its token is another one.
    """
    try:
        sock = socket.create_connection((rendezvous.host, rendezvous.port), _HANDSHAKE_TIMEOUT_S)
        sock.settimeout(None)
        _keep_alive(sock, silence_timeout_s)
    except (OSError, UnicodeError) as error:
        raise ClusterUnavailable(f"host 0 can't be reached at {rendezvous}: {reason_of(error)}") from error
    connection = _connection(sock)
    try:
        with _deadline(connection):
            theirs, ours = _receive(connection), os.urandom(_NONCE_BYTES)
            connection.send_bytes(ours + _proof(rendezvous.key, b"host", ours, theirs))
            if not hmac.compare_digest(_receive(connection), _proof(rendezvous.key, b"leader", ours, theirs)):
                raise NotProven(f"the cluster token of host 0 at {rendezvous} is not this host's; start both with one")
    except (OSError, EOFError) as error:
        connection.close()
        raise ClusterUnavailable(f"host 0 at {rendezvous} has ended the connection: {reason_of(error)}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def _proof(key: bytes, role: bytes, hosts: bytes, leaders: bytes) -> bytes:
    """Hashes both nonces, so that none holds twice, and the role, so that neither end can send the other's back."""
    return hmac.digest(key, b"punica group " + role + hosts + leaders, "sha256")


def _receive(connection: TcpConnection) -> bytes:
    return connection.recv_bytes(_MAX_HANDSHAKE_BYTES)


def _connection(sock: socket.socket) -> TcpConnection:
    return Connection(sock.detach())


def _keep_alive(sock: socket.socket, silence_timeout_s: float) -> None:
    """Has the system end the connection when the other host does not answer for so long."""
    interval_s = max(1, round(silence_timeout_s / _NUM_KEEPALIVES))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, interval_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _NUM_KEEPALIVES - 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1e3 * silence_timeout_s))


@contextmanager
def _deadline(connection: TcpConnection) -> Iterator[None]:
    """Ends the connection if the handshake takes too long, however many bytes come."""
    with socket.socket(fileno=os.dup(connection.fileno())) as own:

        def end() -> None:
            with suppress(OSError):
                own.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(_HANDSHAKE_TIMEOUT_S, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
