"""The addresses of this host: where it listens, and by which network interface it reaches another host."""

import fcntl
import socket
import struct
from contextlib import suppress

#: This host's own.
LOOPBACK = "lo"
_SIOCGIFADDR = 0x8915
#: Any port: nothing is sent.
_PORT = 9
_NAME_BYTES = 256
#: Connections that wait to be accepted.
_BACKLOG = 128


def listen_at(host: str, port: int) -> socket.socket:
    """A socket that listens at this address of this host, and at no other. Port 0: a free one. Raises OSError, and
    UnicodeError for a name that is none.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def interface_to(host: str) -> str | None:
    """The name of the interface with the address that this host has towards ``host``; None if there is none by IPv4."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, _PORT))
            own = probe.getsockname()[0]
    except (OSError, UnicodeError):
        return None
    return next((name for _, name in socket.if_nameindex() if _address_of(name) == own), _loopback_of(own))


def _loopback_of(address: str) -> str | None:
    """All of 127.0.0.0/8 is the loopback interface's, which has but one address."""
    return LOOPBACK if address.startswith("127.") else None


def _address_of(interface: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, suppress(OSError):
        found = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, struct.pack(f"{_NAME_BYTES}s", interface.encode()))
        return socket.inet_ntoa(found[20:24])
    return None
