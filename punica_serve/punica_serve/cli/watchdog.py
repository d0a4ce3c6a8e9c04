"""The service manager's end of sd_notify: what `up` offers each of its children, and how it sees one freeze."""

import asyncio
import math
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from punica_serve.notify import SOCKET_ENV, WATCHDOG_ENV
from punica_serve.stillness import Stillness

#: From the start of a process to its first sign of life: imports, on a busy machine.
START_TIMEOUT_S = 60.0

_NUM_LOOKS = 5
_MAX_DATAGRAM_BYTES = 4096


class Watchdog:
    """Hears one process's signs of life. Made by ``watchdog``."""

    def __init__(self, listener: socket.socket, path: Path, timeout_s: float) -> None:
        self._listener = listener
        self._timeout_s = timeout_s
        self._num_signs = 0
        #: For the process, which then knows where to give signs, and how often.
        self.environment: Mapping[str, str] = {SOCKET_ENV: str(path), WATCHDOG_ENV: str(round(timeout_s * 1e6))}

    def hear(self) -> None:
        with suppress(BlockingIOError):
            while self._listener.recv(_MAX_DATAGRAM_BYTES):
                self._num_signs += 1

    async def until_frozen(self) -> None:
        """Returns when the process gives no sign for ``timeout_s``, or none at all for START_TIMEOUT_S."""
        look_s = self._timeout_s / _NUM_LOOKS
        starting = Stillness(0, math.ceil(START_TIMEOUT_S / look_s))
        running = Stillness(0, _NUM_LOOKS)
        while True:
            await asyncio.sleep(look_s)
            if (running if self._num_signs else starting).look(self._num_signs):
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
