"""One end of the socket between a leader and one of its ranks: whole messages, both ways."""

import os
import socket
import struct
import threading
from multiprocessing.connection import Connection, wait
from typing import Any

from punica_serve.protocol import Decoder, Message, encode

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
        with socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as own:
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                own.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", _MESSAGE_TIMEOUT_S, 0))

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        """Raises LinkEnded."""
        try:
            with self._lock:
                self._connection.send_bytes(encode(message))
        except OSError as error:
            raise LinkEnded from error

    def await_message(self, timeout_s: float) -> bool:
        """Whether a message, or the end of the link, has come within the timeout."""
        return any(wait([self._connection], timeout_s / _NUM_WAITS) for _ in range(_NUM_WAITS))

    def receive(self) -> Any:
        """The next message, which has come. Raises LinkEnded, and ProtocolError for an invalid one."""
        try:
            frame = self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise LinkEnded from error
        return self._decode(frame)

    def close(self) -> None:
        self._connection.close()
