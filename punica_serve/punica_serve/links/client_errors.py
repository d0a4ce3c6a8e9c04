"""Errors for users whose command, replay or benchmark a frontend refused or did not answer."""

import json
import ssl

from punica_serve.errors import ClusterUnavailable, Unauthorized
from punica_serve.errors.reasons import reason_of
from punica_serve.links.https_client import CA_FILE_ENV


def message_of(url: str, status: int, body: bytes | bytearray) -> str:
    """The error message in a frontend's answer with this status and body."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{url} answered {status}, but not as a frontend does; set `--url` to a frontend's address"


def wants_key(url: str) -> Unauthorized:
    """The error for a frontend's answer 401."""
    return Unauthorized(f"{url} requires a valid API key: set `--key` or PUNICA_API_KEY")


def no_answer(url: str, error: Exception, option: str = "--url") -> ClusterUnavailable:
    """The error for a frontend that can't be reached, from an HTTP or websocket client's ``error``.

    ``option`` is the one that sets the URL.
    """
    advice = f"start a cluster with `punica-serve up`, or set {option} to a frontend's address"
    cause = _cause(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        advice = f"set {CA_FILE_ENV} to a file with the authority that signed its certificate"
    return ClusterUnavailable(f"no frontend answers at {url} ({reason_of(cause)}); {advice}")


def _cause(error: BaseException) -> BaseException:
    """The operating system's own error below a client's, if there is one."""
    cause: BaseException | None = error
    while cause is not None and not (isinstance(cause, OSError) and cause.strerror):
        cause = cause.__cause__ or cause.__context__
    return cause or error
