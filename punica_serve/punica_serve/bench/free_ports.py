"""Ports for what is to listen later: the kernel gives them to nobody who asks it for any."""

import random
import socket
from contextlib import ExitStack
from pathlib import Path

_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _USUAL_END = 10_000, 32_768
#: Programs that run beside each other draw ports of their own, whatever seeds they set.
_dice = random.SystemRandom()


def free_ports(count: int) -> list[int]:
    """Consecutive ones, on which nobody listens; drawn from so many that nobody else will soon."""
    end = int(_RANGE_FILE.read_text().split()[0]) if _RANGE_FILE.exists() else _USUAL_END
    while True:
        first = _dice.randrange(_LOWEST, max(end, _LOWEST + 1_000) - count)
        ports = list(range(first, first + count))
        if _are_free(ports):
            return ports


def free_port() -> int:
    return free_ports(1)[0]


def _are_free(ports: list[int]) -> bool:
    try:
        with ExitStack() as held:
            for port in ports:
                held.enter_context(socket.create_server(("", port)))
    except OSError:
        return False
    return True
