"""What a process tells whoever started it: that it is ready, and again and again that it is not frozen.

The protocol is systemd's (sd_notify): datagrams to the unix socket that NOTIFY_SOCKET names. So one mechanism serves a
unit with `Type=notify` and `WatchdogSec=`, and `punica-serve up`, which offers its children such a socket of its own.
Where nobody offers one, nothing is told.
"""

import asyncio
import contextlib
import os
import socket

SOCKET_ENV = "NOTIFY_SOCKET"
#: A process that is silent for longer, in microseconds, is taken for frozen.
WATCHDOG_ENV = "WATCHDOG_USEC"

READY = "READY=1"
STOPPING = "STOPPING=1"
WATCHDOG = "WATCHDOG=1"

#: Signs of life in the time within which one is due.
_NUM_SIGNS = 4


def notify(state: str) -> None:
    """Tells the service manager, if there is one that listens. Never waits and never fails."""
    address = os.environ.get(SOCKET_ENV)
    if not address:
        return
    if address.startswith("@"):  # Linux's sockets without a file
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto(state.encode(), address)


async def keep_alive() -> None:
    """Gives signs of life from the event loop, so that they end when it stands still. Returns if none are asked for."""
    timeout_us = os.environ.get(WATCHDOG_ENV)
    if not timeout_us:
        return
    while True:
        notify(WATCHDOG)
        await asyncio.sleep(int(timeout_us) / 1e6 / _NUM_SIGNS)
