"""What is told of a frontend that refuses a command, a replay or a benchmark, or that does not answer."""

import json
import os
import socket
import ssl

from punica_serve.errors import ClusterUnavailable, Unauthorized


def message_of(url: str, status: int, body: bytes | bytearray) -> str:
    """Of the answer to ``url``."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):  # from something else than a frontend
        return f"{url} answered {status}"


def wants_key(url: str) -> Unauthorized:
    """For a frontend that answers 401."""
    return Unauthorized(f"{url} wants a valid API key: give it with --key, or in PUNICA_API_KEY")


def no_answer(url: str, error: Exception, option: str = "--url") -> ClusterUnavailable:
    """``error`` is what an HTTP or websocket client says of it, and ``option`` where the URL was given."""
    where = f"`punica-serve up` starts a cluster, {option} says where one is"
    return ClusterUnavailable(f"no frontend answers at {url} ({_reason(error)}); {where}")


def _reason(error: BaseException) -> str:
    """The system's own words where there are any: libraries put numbers and addresses round them."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (ssl.SSLError, socket.gaierror)):
            return cause.strerror or str(cause)  # their numbers are not the system's
        if isinstance(cause, OSError) and cause.errno and cause.strerror:
            return os.strerror(cause.errno)
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__
