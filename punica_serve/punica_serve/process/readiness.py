"""Readiness and watchdog notifications: a process says that it is ready, and then regularly that it is not frozen.

The protocol is systemd's sd_notify: datagrams to the unix socket that NOTIFY_SOCKET names. So it works in a unit with
`Type=notify` and `WatchdogSec=`, and below `punica-serve up`, which gives its children such a socket. Without a socket
nothing is sent.

For containers' health checks there is a file instead: it appears when the process is ready, and each notification
updates its modification time.
"""

import asyncio
import contextlib
import os
import socket
from pathlib import Path

SOCKET_ENV = "NOTIFY_SOCKET"
#: A process that sends nothing for so many microseconds counts as frozen.
WATCHDOG_ENV = "WATCHDOG_USEC"

#: Names the file for health checks, if there is one.
ALIVE_FILE_ENV = "PUNICA_ALIVE_FILE"

READY = "READY=1"
STOPPING = "STOPPING=1"
WATCHDOG = "WATCHDOG=1"

#: Notifications within the watchdog's timeout.
_NUM_NOTIFICATIONS = 4
#: Between updates of the file, if there is no watchdog's timeout.
_FILE_INTERVAL_S = 1.0


def notify(state: str) -> None:
    """Notifies the service manager, if one listens, and updates the alive file. Never waits and never fails."""
    with contextlib.suppress(OSError):
        _notify_manager(state)
    with contextlib.suppress(OSError):
        _touch_alive_file(state)


def _notify_manager(state: str) -> None:
    address = os.environ.get(SOCKET_ENV)
    if not address:
        return
    if address.startswith("@"):  # Linux's abstract sockets
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto(state.encode(), address)


def _touch_alive_file(state: str) -> None:
    """Creates the file at READY; WATCHDOG updates it, and fails before READY because there is no file."""
    file = _alive_file()
    if file is None:
        return
    if state == READY:
        file.touch()
    elif state == WATCHDOG:
        os.utime(file)


async def keep_alive() -> None:
    """Notifies the watchdog from the event loop, so a blocked loop stops notifying. Returns if nothing asks for it."""
    timeout_us = os.environ.get(WATCHDOG_ENV)
    if timeout_us:
        interval_s = int(timeout_us) / 1e6 / _NUM_NOTIFICATIONS
    elif _alive_file():
        interval_s = _FILE_INTERVAL_S
    else:
        return
    while True:
        notify(WATCHDOG)
        await asyncio.sleep(interval_s)


def remove_stale_alive_file() -> None:
    """Removes the alive file of an earlier process that was killed."""
    if file := _alive_file():
        with contextlib.suppress(OSError):
            file.unlink()


def _alive_file() -> Path | None:
    name = os.environ.get(ALIVE_FILE_ENV)
    return Path(name) if name else None
