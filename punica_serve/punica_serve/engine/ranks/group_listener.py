"""Where the leader of a group listens for its other hosts and their ranks.

Anybody who reaches the port may connect. Until a connection has proved that it knows the cluster's token, and said what
it is for, it gets a thread and a few hundred bytes for some seconds, and holds up no other.
"""

import logging
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from punica_serve.engine.ranks.group_settings import Rendezvous
from punica_serve.engine.ranks.host_connection import NotProven, TcpConnection, accept, listen, receive_first
from punica_serve.engine.ranks.host_messages import FirstMessage
from punica_serve.engine.ranks.rank_link import LinkEnded
from punica_serve.errors import ProtocolError
from punica_serve.errors.reasons import reason_of
from punica_serve.process.limited_log import LimitedLog
from punica_serve.protocol.codec import Decoder

log = logging.getLogger(__name__)

#: Connections that prove themselves at a time; more wait in the system's queue.
_MAX_ARRIVING = 32
#: From a failure to accept connections, as without free file descriptors, to the next try.
_PAUSE_S = 0.5
#: Between two log lines of strangers, and between two of hosts that have proved themselves.
_LOG_EVERY_S = 60.0
#: Longest wait for a thread's end.
_JOIN_S = 5.0

_decode_first = Decoder(FirstMessage)

#: Takes a connection and its first message, one at a time. It may raise ProtocolError, OSError and LinkEnded.
Admit = Callable[[FirstMessage, TcpConnection], None]


class GroupListener:
    """Listens until it is closed."""

    def __init__(self, rendezvous: Rendezvous, silence_timeout_s: float, admit: Admit) -> None:
        """``admit`` owns the connections that it gets, also if it raises. Raises ConfigError."""
        self._key = rendezvous.key
        self._silence_timeout_s = silence_timeout_s
        self._admit = admit
        #: Two, so that strangers, however many, hide nothing of the group's own hosts.
        self._strangers, self._hosts = LimitedLog(log, _LOG_EVERY_S), LimitedLog(log, _LOG_EVERY_S)
        self._socket = listen(rendezvous)
        self._is_closed = threading.Event()
        self._places = threading.Semaphore(_MAX_ARRIVING)
        self._provers = ThreadPoolExecutor(_MAX_ARRIVING, "group-arrival")
        #: Held while a connection is admitted, or ``_arriving`` changes.
        self._lock = threading.Lock()
        #: Duplicates of the sockets that have not been admitted.
        self._arriving: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept_all, name="rendezvous", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the connections that have not been admitted, and listens no more. May be called again."""
        self._is_closed.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # ends the wait in accept, as a close would not
        with self._lock:
            for sock in self._arriving:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(_JOIN_S)
        self._socket.close()
        self._provers.shutdown()

    def _accept_all(self) -> None:
        while not self._is_closed.is_set():
            if not self._places.acquire(timeout=_PAUSE_S):
                continue
            try:
                sock, address = self._socket.accept()
            except OSError as error:
                self._places.release()
                if not self._is_closed.wait(_PAUSE_S):
                    self._strangers.warning("can't accept connections to the group: %s; trying again", reason_of(error))
                continue
            self._provers.submit(self._arrive, sock, address[0])

    def _arrive(self, sock: socket.socket, address: str) -> None:
        try:
            with socket.socket(fileno=os.dup(sock.fileno())) as own:
                self._prove(sock, own)
        except (ProtocolError, LinkEnded) as error:
            if not self._is_closed.is_set():
                limited = self._strangers if isinstance(error, NotProven) else self._hosts
                limited.warning("refused a connection to the group from %s: %s", address, error)
        except OSError as error:  # the peer is gone
            self._strangers.warning("lost a connection to the group from %s: %s", address, reason_of(error))
        finally:
            self._places.release()

    def _prove(self, sock: socket.socket, own: socket.socket) -> None:
        """``own``: its duplicate. Raises ProtocolError for one that may not come, OSError and LinkEnded."""
        with self._lock:
            if self._is_closed.is_set():
                sock.close()
                return
            self._arriving.add(own)
        try:
            connection = accept(sock, self._key, self._silence_timeout_s)
            try:
                message = _decode_first(receive_first(connection))
            except ProtocolError:
                connection.close()
                raise
        finally:
            with self._lock:
                self._arriving.remove(own)
        with self._lock:
            if self._is_closed.is_set():
                connection.close()
            else:
                self._admit(message, connection)
