"""The parent's side of sd_notify: `up` offers it to its children, and detects frozen ones."""

import asyncio
import math
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from punica_serve.process.readiness import SOCKET_ENV, WATCHDOG_ENV
from punica_serve.process.stall_detector import StallDetector

#: Time from a process's start to its first notification: imports, on a busy machine.
START_TIMEOUT_S = 60.0

_NUM_LOOKS = 5
_MAX_DATAGRAM_BYTES = 4096
#: Linux's ``struct ucred``: the sender's pid, user and group.
_CREDENTIALS = struct.Struct("iII")


class Watchdog:
    """Receives one process's notifications. Created by ``watchdog``."""

    def __init__(self, listener: socket.socket, timeout_s: float) -> None:
        self._listener = listener
        self._timeout_s = timeout_s
        self._num_signs = 0
        #: Environment that tells the process where and how often to notify.
        self.environment: Mapping[str, str] = {
            SOCKET_ENV: _name(listener),
            WATCHDOG_ENV: str(round(timeout_s * 1e6)),
        }

    def hear(self) -> None:
        """Reads one notification. Those of other users don't count: any process of the host can send to the socket."""
        with suppress(BlockingIOError):
            _, ancillary, _, _ = self._listener.recvmsg(_MAX_DATAGRAM_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
            self._num_signs += any(_sender(data) == os.getuid() for _, _, data in ancillary)

    @property
    def has_notified(self) -> bool:
        """The process runs its event loop by now, with its signal handlers."""
        return self._num_signs > 0

    async def until_frozen(self) -> None:
        """Returns after ``timeout_s`` without a notification, or START_TIMEOUT_S without a first one."""
        look_s = self._timeout_s / _NUM_LOOKS
        starting = StallDetector(0, math.ceil(START_TIMEOUT_S / look_s))
        running = StallDetector(0, _NUM_LOOKS)
        while True:
            await asyncio.sleep(look_s)
            if (running if self.has_notified else starting).observe(self._num_signs):
                return


@contextmanager
def watchdog(timeout_s: float) -> Iterator[Watchdog]:
    """Listens for one process that is about to start. Needs a running event loop.

    The socket is abstract: it has no file, so nothing is left of it when this process is killed.
    """
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        listener.bind("")  # Linux picks a free abstract name
        heard = Watchdog(listener, timeout_s)
        loop.add_reader(listener, heard.hear)
        try:
            yield heard
        finally:
            loop.remove_reader(listener)


def _name(listener: socket.socket) -> str:
    """A bound abstract socket's name as NOTIFY_SOCKET has it, with "@" for the NUL."""
    name: bytes = listener.getsockname()
    return "@" + name[1:].decode()


def _sender(credentials: bytes) -> int:
    """The user that sent the notification to which the kernel attached ``credentials``."""
    user: int = _CREDENTIALS.unpack(credentials)[1]
    return user
