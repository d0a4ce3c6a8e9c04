"""What is told of a frontend that refuses a command, a replay or a benchmark, or that does not answer."""

import json

from punica_serve.errors import ClusterUnavailable, Unauthorized
from punica_serve.reasons import reason_of


def message_of(url: str, status: int, body: bytes | bytearray) -> str:
    """Of the answer to ``url``."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{url} answered {status} as no frontend does; `--url` says where one is"


def wants_key(url: str) -> Unauthorized:
    """For a frontend that answers 401."""
    return Unauthorized(f"{url} wants a valid API key: give it with `--key`, or in PUNICA_API_KEY")


def no_answer(url: str, error: Exception, option: str = "--url") -> ClusterUnavailable:
    """``error`` is what an HTTP or websocket client says of it, and ``option`` where the URL was given."""
    where = f"`punica-serve up` starts a cluster, {option} says where one is"
    return ClusterUnavailable(f"no frontend answers at {url} ({_reason(error)}); {where}")


def _reason(error: BaseException) -> str:
    """What the system said, where it said something: clients make errors of their own of it."""
    cause: BaseException | None = error
    while cause is not None and not (isinstance(cause, OSError) and cause.strerror):
        cause = cause.__cause__ or cause.__context__
    return reason_of(cause or error)
