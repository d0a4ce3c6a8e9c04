"""Single keys of a terminal, without Enter."""

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def on_key(key: bytes, act: Callable[[], None]) -> Iterator[None]:
    """Calls ``act`` when the key is pressed. Does nothing without a terminal."""
    fd = sys.stdin.fileno() if sys.stdin.isatty() else None
    if fd is None:
        yield
        return
    loop = asyncio.get_running_loop()
    before = termios.tcgetattr(fd)

    def read() -> None:
        pressed = os.read(fd, 1024)
        if not pressed:  # the terminal is closed
            loop.remove_reader(fd)
        if not pressed or key in pressed:
            act()

    tty.setcbreak(fd)  # Ctrl-C remains a signal
    loop.add_reader(fd, read)
    try:
        yield
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
