"""Ports for what is to listen later: the kernel gives them to nobody who asks it for any."""

import errno
import random
import socket
from contextlib import ExitStack
from pathlib import Path

from punica_serve.errors import ConfigError

_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST, _USUAL_END, _HIGHEST = 10_000, 32_768, 65_535
#: Fewer to draw from would often be the same.
_MIN_PORTS = 1_000
_MAX_DRAWS = 100
#: Programs that run beside each other draw ports of their own, whatever seeds they set.
_random = random.SystemRandom()


def free_ports(count: int) -> list[int]:
    """Returns consecutive ports that nobody listens on, outside the kernel's ephemeral range if that leaves enough.

    Raises ConfigError if there are none, OSError if this process may not listen.
    """
    drawn = _drawn_from(_RANGE_FILE.read_text() if _RANGE_FILE.exists() else "")
    for _ in range(_MAX_DRAWS):
        first = _random.randrange(drawn.start, drawn.stop - count)
        ports = list(range(first, first + count))
        if _are_free(ports):
            return ports
    raise ConfigError(f"{_MAX_DRAWS} draws found no {count} free ports from {drawn.start} to {drawn.stop - 1}")


def free_port() -> int:
    """One of ``free_ports``."""
    return free_ports(1)[0]


def _drawn_from(ephemeral: str) -> range:
    """The ports below the ephemeral range, as the kernel writes it, or above it; all if it leaves neither."""
    first, last = map(int, ephemeral.split()) if ephemeral else (_USUAL_END, _HIGHEST)
    below, above = range(_LOWEST, first), range(last + 1, _HIGHEST + 1)
    return next((part for part in (below, above) if len(part) >= _MIN_PORTS), range(_LOWEST, _HIGHEST + 1))


def _are_free(ports: list[int]) -> bool:
    try:
        with ExitStack() as held:
            for port in ports:
                held.enter_context(socket.create_server(("", port)))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True
