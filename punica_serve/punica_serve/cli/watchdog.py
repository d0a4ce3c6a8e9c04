"""The parent's side of sd_notify: `up` offers it to its children, and detects frozen ones."""

import asyncio
import math
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from punica_serve.process.readiness import SOCKET_ENV, WATCHDOG_ENV
from punica_serve.process.stall_detector import StallDetector

#: Time from a process's start to its first notification: imports, on a busy machine.
START_TIMEOUT_S = 60.0

_NUM_LOOKS = 5
_MAX_DATAGRAM_BYTES = 4096


class Watchdog:
    """Receives one process's notifications. Created by ``watchdog``."""

    def __init__(self, listener: socket.socket, path: Path, timeout_s: float) -> None:
        self._listener = listener
        self._timeout_s = timeout_s
        self._num_signs = 0
        #: Environment that tells the process where and how often to notify.
        self.environment: Mapping[str, str] = {SOCKET_ENV: str(path), WATCHDOG_ENV: str(round(timeout_s * 1e6))}

    def hear(self) -> None:
        with suppress(BlockingIOError):
            while self._listener.recv(_MAX_DATAGRAM_BYTES):
                self._num_signs += 1

    async def until_frozen(self) -> None:
        """Returns after ``timeout_s`` without a notification, or START_TIMEOUT_S without a first one."""
        look_s = self._timeout_s / _NUM_LOOKS
        starting = StallDetector(0, math.ceil(START_TIMEOUT_S / look_s))
        running = StallDetector(0, _NUM_LOOKS)
        while True:
            await asyncio.sleep(look_s)
            if (running if self._num_signs else starting).observe(self._num_signs):
                return


@contextmanager
def watchdog(timeout_s: float) -> Iterator[Watchdog]:
    """Listens for one process that is about to start. Needs a running event loop."""
    loop = asyncio.get_running_loop()
    with (
        TemporaryDirectory(prefix="punica-") as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener,
    ):
        path = Path(folder) / "notify"
        listener.setblocking(False)
        listener.bind(str(path))
        heard = Watchdog(listener, path, timeout_s)
        loop.add_reader(listener, heard.hear)
        try:
            yield heard
        finally:
            loop.remove_reader(listener)
