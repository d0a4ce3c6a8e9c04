"""What a process tells whoever started it: that it is ready, and again and again that it is not frozen.

The protocol is systemd's (sd_notify): datagrams to the unix socket that NOTIFY_SOCKET names. So one mechanism serves a
unit with `Type=notify` and `WatchdogSec=`, and `punica-serve up`, which offers its children such a socket of its own.
Where nobody offers one, nothing is told.

Containers have health checks in its place, which look at a file: it appears when the process is ready, and the time of
its last change is that of the newest sign of life.
"""

import asyncio
import contextlib
import os
import socket
from pathlib import Path

SOCKET_ENV = "NOTIFY_SOCKET"
#: A process that is silent for longer, in microseconds, is taken for frozen.
WATCHDOG_ENV = "WATCHDOG_USEC"

#: Names the file for health checks, where there is to be one.
ALIVE_FILE_ENV = "PUNICA_ALIVE_FILE"

READY = "READY=1"
STOPPING = "STOPPING=1"
WATCHDOG = "WATCHDOG=1"

#: Signs of life in the time within which one is due.
_NUM_SIGNS = 4
#: Where only a file is looked at, whose onlookers know no more than that.
_FILE_INTERVAL_S = 1.0


def notify(state: str) -> None:
    """Tells the service manager, if one listens, and who looks at the file. Never waits and never fails."""
    with contextlib.suppress(OSError):
        _tell_manager(state)
    with contextlib.suppress(OSError):
        _tell_onlookers(state)


def _tell_manager(state: str) -> None:
    address = os.environ.get(SOCKET_ENV)
    if not address:
        return
    if address.startswith("@"):  # Linux's sockets without a file
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto(state.encode(), address)


def _tell_onlookers(state: str) -> None:
    """A sign of life before the process is ready changes nothing: there is no file yet."""
    file = _alive_file()
    if file is None:
        return
    if state == READY:
        file.touch()
    elif state == WATCHDOG:
        os.utime(file)


async def keep_alive() -> None:
    """Gives signs of life from the event loop, so that they end when it stands still. Returns if none are asked for."""
    timeout_us = os.environ.get(WATCHDOG_ENV)
    if timeout_us:
        interval_s = int(timeout_us) / 1e6 / _NUM_SIGNS
    elif _alive_file():
        interval_s = _FILE_INTERVAL_S
    else:
        return
    while True:
        notify(WATCHDOG)
        await asyncio.sleep(interval_s)


def forget_last_life() -> None:
    """Removes the file that a process left which was killed: it says nothing of this one."""
    if file := _alive_file():
        with contextlib.suppress(OSError):
            file.unlink()


def _alive_file() -> Path | None:
    name = os.environ.get(ALIVE_FILE_ENV)
    return Path(name) if name else None
