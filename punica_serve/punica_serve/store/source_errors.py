"""Classifies failures of a source: a mistake that the caller can mend, or an outage."""

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import PurePath

from aiohttp import ClientConnectorError, ClientSSLError

from punica_serve.errors import AdapterRejected, ConfigError
from punica_serve.errors.plain_files import NotPlain

#: HTTP statuses that may change on their own.
_PASSING = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)

_NOT_SET_UP = "this cluster is not set up for it; its operator's log says what is missing"
_NO_CREDENTIALS = "this cluster has no credentials for it; its operator may add them"
_NO_ACCESS = "this cluster may not read it; give it access"
_NO_TLS = "its server shows no certificate that this cluster trusts, or does not speak TLS"
_REFUSES = "nothing accepts connections at that address; check its host and port, and that the server runs"
_NO_ROUTE = "this cluster has no route to that address; check its host"
_NO_FOLDER = "there is no such folder"

#: By class name: the libraries that define them may not be installed.
_REASONS = {
    "NoCredentialsError": _NO_CREDENTIALS,
    "PartialCredentialsError": _NO_CREDENTIALS,
    "ParamValidationError": _NO_FOLDER,
    "HFValidationError": _NO_FOLDER,
    "HfUriError": _NO_FOLDER,
}
#: By error number: what is wrong with an address of a web server, which the caller has given. One that answers nothing,
#: not even that, may be slow.
_CONNECTING = {
    errno.ECONNREFUSED: _REFUSES,
    errno.EHOSTUNREACH: _NO_ROUTE,
    errno.ENETUNREACH: _NO_ROUTE,
    errno.EINVAL: _NO_ROUTE,
}
_NO_FOLDERS = {errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL}

logger = logging.getLogger(__name__)


@contextmanager
def source_refusals(uri: str) -> Iterator[None]:
    """Raises AdapterRejected in place of an error that a retry would not mend. Temporary errors pass unchanged.

    File systems raise exceptions of all their libraries. Those name servers, so they only go to the log.
    """
    try:
        yield
    except Exception as error:
        reason = _reason(error)
        if reason is None:
            raise
        logger.warning("%s can't be read: %s: %s", uri, type(error).__name__, error)
        raise AdapterRejected(f"{uri} can't be read: {reason}; or upload the adapter instead", param="uri") from error


def is_refusal(status: int) -> bool:
    """Whether a server that answers with this HTTP status would do so again."""
    return status // 100 == 4 and status not in _PASSING


def _reason(error: Exception) -> str | None:
    """The reason for the caller; None if the source is down or slow."""
    if isinstance(error, ConfigError):
        return _NOT_SET_UP
    if isinstance(error, ClientSSLError):
        return _NO_TLS
    if isinstance(error, ClientConnectorError):
        return _CONNECTING.get(error.errno or 0)
    if isinstance(error, NotPlain):
        return f"{PurePath(error.filename).name} is not a regular file"
    if isinstance(error, PermissionError):
        return _NO_ACCESS
    if isinstance(error, NotImplementedError) or (isinstance(error, OSError) and error.errno in _NO_FOLDERS):
        return _NO_FOLDER
    named = next((_REASONS[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _REASONS), None)
    return named or _reason_of_status(_http_status(error))


def _reason_of_status(status: int | None) -> str | None:
    if status is None or not is_refusal(status):
        return None
    return _NO_ACCESS if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN) else _NO_FOLDER


def _http_status(error: Exception) -> int | None:
    """The HTTP status in an error of a client library."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None
