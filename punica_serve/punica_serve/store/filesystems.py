"""Opens fsspec file systems by URL, and turns all their failures into StoreUnavailable."""

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import unquote

import aiohttp
import fsspec
from fsspec.core import url_to_fs

from punica_serve.errors import ConfigError, PunicaError, StoreUnavailable
from punica_serve.store.failure_log import FailureLog
from punica_serve.store.secrets import resolved

#: A request to an object store takes tens of milliseconds, however small.
CHUNK_BYTES = 16 << 20

#: File systems for whose package there is an extra.
_EXTRAS = ("s3", "hf")
_FULL = {errno.ENOSPC, errno.EDQUOT}

# Below the configured timeouts: how long a server may be silent. The clients' own limits are minutes, and an abandoned
# call holds its thread for that long.
_CONNECT_S, _SILENCE_S = 5, 20
_S3_CLIENT = {"connect_timeout": _CONNECT_S, "read_timeout": _SILENCE_S, "retries": {"max_attempts": 1}}
_S3_TRIES = 2
_HTTP_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S)


class FileSystems:
    """File systems of one set of options, one per scheme, since creating a client may take a second. Thread-safe.

    fsspec's caches are off: other processes change the files.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        """``options`` are fsspec's, and may refer to secrets."""
        self._options = options
        self._by_scheme: dict[str, fsspec.AbstractFileSystem] = {}
        self._lock = Lock()

    def open(self, url: str) -> tuple[fsspec.AbstractFileSystem, str]:
        """The file system of a URL, and the path within it. Raises ConfigError."""
        scheme = url.partition("://")[0]
        with self._lock:
            if scheme not in self._by_scheme:
                self._by_scheme[scheme] = _make(scheme, url, resolved(self._options))
            filesystem = self._by_scheme[scheme]
        filesystem.invalidate_cache()
        return filesystem, filesystem._strip_protocol(url)


def _make(scheme: str, url: str, options: dict[str, Any]) -> fsspec.AbstractFileSystem:
    given = {"skip_instance_cache": True, "use_listings_cache": False, **options}
    if scheme == "s3":
        given["config_kwargs"] = {**_S3_CLIENT, **given.get("config_kwargs", {})}
    if scheme in ("http", "https"):
        given["client_kwargs"] = {"timeout": _HTTP_TIMEOUT, **given.get("client_kwargs", {})}
    try:
        filesystem, _ = url_to_fs(url, **given)
    except ImportError as error:
        raise ConfigError(_lacks_package(scheme, error)) from error
    if scheme == "s3":
        filesystem.retries = _S3_TRIES
    return filesystem


def check_package(url: str) -> None:
    """Raises ConfigError if the file system of `store.url` needs a package that is not installed."""
    scheme = url.partition("://")[0].partition("::")[0]
    try:
        fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        raise ConfigError(f"`store.url`: {_lacks_package(scheme, error)}", param="store.url") from error


def _lacks_package(scheme: str, error: ImportError) -> str:
    extra = f"; install punica-serve[{scheme}]" if scheme in _EXTRAS else ""
    return f"{scheme}:// needs a package that is not installed: {error}{extra}"


def folder_of(uri: str) -> Path | None:
    """The folder of a path or file:// URL; None for other URLs."""
    if uri.startswith("file://"):
        return Path(unquote(uri.removeprefix("file://")))
    return None if "://" in uri else Path(uri)


def is_unreachable(error: FileNotFoundError) -> bool:
    """Whether the server is the problem: fsspec reports an unreachable or failing HTTP server as a missing file."""
    cause = error.__cause__
    return isinstance(cause, aiohttp.ClientError) and getattr(cause, "status", None) != HTTPStatus.NOT_FOUND


@contextmanager
def store_errors(what: str, failures: FailureLog, *, place: str = "the storage") -> Iterator[None]:
    """Turns any exception of a file system into StoreUnavailable, whose message says that ``what`` failed at ``place``.

    File systems raise exceptions of all their libraries. Those name servers and folders, so they only go to the log.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, PunicaError) and not isinstance(error, ConfigError):
            raise
        failures.failed(what, error)
        is_full = isinstance(error, OSError) and error.errno in _FULL
        reason = "the storage is full" if is_full else f"{place} is not available"
        message = f"{what} failed: {reason}; try again later, or tell the operator, whose log has the details"
        raise StoreUnavailable(message) from error
    else:
        failures.worked(what)
