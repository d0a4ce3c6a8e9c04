"""One end of the socket between a leader and one of its ranks: whole messages, both ways."""

import os
import socket
import struct
import threading
from multiprocessing.connection import Connection
from typing import Any

from punica_serve.protocol import Decoder, Message, encode


class LinkEnded(Exception):
    """The other process has ended."""


class RankLink:
    """One thread receives, any thread sends."""

    def __init__(self, connection: "Connection[Any, Any]", union: Any, timeout_s: int = 0) -> None:
        """``union``: the messages that arrive here. ``timeout_s``: longest wait within a message; 0: no limit."""
        self._connection = connection
        self._decode = Decoder(union)
        self._lock = threading.Lock()
        os.set_inheritable(connection.fileno(), False)
        with socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as own:
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                own.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", timeout_s, 0))

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        """Raises LinkEnded."""
        try:
            with self._lock:
                self._connection.send_bytes(encode(message))
        except OSError as error:
            raise LinkEnded from error

    def receive(self) -> Any:
        """Waits for the next message. Raises LinkEnded, and ProtocolError for an invalid one."""
        try:
            frame = self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise LinkEnded from error
        return self._decode(frame)

    def close(self) -> None:
        self._connection.close()
