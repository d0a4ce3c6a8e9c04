"""One end of the socket between a leader and one of its ranks, or a host that has joined: whole messages, both ways."""

import os
import socket
import struct
import threading
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from punica_serve.protocol import MAX_FRAME_BYTES, Decoder, Message, encode

#: The longest message: no ring takes a longer frame.
_MAX_BYTES = 2 * MAX_FRAME_BYTES
#: Longest wait within a message, and until the other end has room for one, in whole seconds.
_MESSAGE_TIMEOUT_S = 5
#: Waits that a silence is made of. A stop of this process counts as one of them, however long it was.
_NUM_WAITS = 5


class LinkEnded(Exception):
    """The other process has ended."""


class RankLink:
    """One thread receives, any thread sends."""

    def __init__(self, connection: "Connection[Any, Any]", union: Any) -> None:
        """``union``: the messages that arrive here."""
        self._connection = connection
        self._decode = Decoder(union)
        self._lock = threading.Lock()
        os.set_inheritable(connection.fileno(), False)
        with self._socket() as own:
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                own.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", _MESSAGE_TIMEOUT_S, 0))

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        """Raises LinkEnded."""
        self.send_frame(encode(message))

    def send_frame(self, frame: bytes) -> None:
        """Raises LinkEnded."""
        try:
            with self._lock:
                self._connection.send_bytes(frame)
        except OSError as error:
            raise LinkEnded from error

    def await_message(self, timeout_s: float) -> bool:
        """Whether a message, or the end of the link, has come within the timeout."""
        return any(wait([self._connection], timeout_s / _NUM_WAITS) for _ in range(_NUM_WAITS))

    def receive(self) -> Any:
        """The next message, which has come. Raises LinkEnded, and ProtocolError for an invalid one."""
        return self._decode(self.receive_frame())

    def receive_frame(self) -> bytes:
        """The next frame, which has come. Raises LinkEnded, also for one that is too long."""
        try:
            return self._connection.recv_bytes(_MAX_BYTES)
        except (EOFError, OSError) as error:
            raise LinkEnded from error

    def end(self) -> None:
        """Ends the link for both processes, and all waits for it. On any thread; it must still be closed."""
        with suppress(OSError), self._socket() as own:
            own.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Not while another thread uses it."""
        self._connection.close()

    def _socket(self) -> socket.socket:
        """The same socket, for what connections can't do; its owner closes it, which does not end the link."""
        return socket.socket(fileno=os.dup(self._connection.fileno()))
