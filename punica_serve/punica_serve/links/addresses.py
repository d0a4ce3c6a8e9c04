"""Addresses that processes listen on and connect to."""

import asyncio
import errno
import socket
from contextlib import ExitStack, suppress

from punica_serve.errors import ConfigError
from punica_serve.errors.reasons import reason_of

#: Addresses that mean all of this machine's: a server can listen there, but clients can't connect to them.
_WILDCARDS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}

#: The reason why no address has such a name.
NO_ADDRESS = "it is not a host's name or address"

_HIGHEST_PORT = 65_535
_POLL_INTERVAL_S = 0.05


def listening_ports(host: str, first: int, count: int, option: str) -> tuple[int, ...]:
    """Consecutive ports from ``first`` on, or free ones if that is 0, after checking that servers can listen there.

    Raises ConfigError, which names ``option`` as the one to change.
    """
    with ExitStack() as held:  # held together, so that no free port is chosen twice
        return tuple(
            held.enter_context(_listening(host, first and first + index, option)).getsockname()[1]
            for index in range(count)
        )


def _listening(host: str, port: int, option: str) -> socket.socket:
    """A listening socket. Raises ConfigError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    change = f"change `{option}`"
    if port > _HIGHEST_PORT:
        raise _refusal(host, port, f"the highest port is {_HIGHEST_PORT}; {change}", option)
    try:
        host.encode("idna")  # the socket module's own failure would leave a socket open
    except UnicodeError as error:
        raise _refusal(host, port, f"{NO_ADDRESS}; {change.replace('port', 'host')}", option) from error
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            what = f"the port is in use; stop what listens there, or {change}"
        elif error.errno == errno.EACCES:
            what = f"{reason_of(error)}; {change}"
        else:
            # The socket module adds its own words to a failed name look-up.
            what = f"{reason_of(error).partition(' (while ')[0]}; {change.replace('port', 'host')}"
        raise _refusal(host, port, what, option) from error


def _refusal(host: str, port: int, what: str, option: str) -> ConfigError:
    return ConfigError(f"can't listen on {host}:{port}: {what}", param=option.removeprefix("--"))


async def until_listening(host: str, port: int) -> None:
    while True:
        with suppress(OSError):
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
            return await writer.wait_closed()
        await asyncio.sleep(_POLL_INTERVAL_S)


def dialled(host: str, port: int) -> str:
    """host:port as clients on this machine write it in a URL."""
    host = _WILDCARDS.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def frontend_url(host: str, port: int, *, is_tls: bool) -> str:
    """The URL of a frontend for clients on this machine."""
    return f"{'https' if is_tls else 'http'}://{dialled(host, port)}"


def scheduler_url(host: str, port: int, *, is_tls: bool) -> str:
    """The scheduler's URL for processes of this machine. Raises ConfigError for port 0, which is not an address."""
    if port == 0:
        message = "`scheduler.port` is 0, for which only `punica-serve up` can choose a port; give `--scheduler-url`"
        raise ConfigError(message, param="scheduler.port")
    return f"{'wss' if is_tls else 'ws'}://{dialled(host, port)}"
