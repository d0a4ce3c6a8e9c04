"""Requests that a page of another site makes a browser send."""

import ipaddress
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from punica_serve.errors import Forbidden

#: What a page may have its browser send with a cookie, wherever the page is from: it changes nothing.
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


def check_cookie_origin(connection: HTTPConnection) -> None:
    """A browser sends its cookies with whatever a page asks for. Raises Forbidden unless the page is this frontend's.

    A page reads nothing of another site's answers, but it may send, and it may read of a websocket.
    """
    if connection.scope["type"] == "http" and connection.scope["method"] in _SAFE_METHODS:
        return
    if "origin" not in connection.headers:
        raise Forbidden("a cookie is for browsers, which send an Origin; send an API key as Authorization: Bearer")
    check_origin(connection)


def check_origin(connection: HTTPConnection) -> None:
    """Raises Forbidden for a request that a browser says it sends for a page of another site."""
    origin, host = connection.headers.get("origin"), connection.headers.get("host", "")
    if origin is not None and _netloc(origin) != host.lower():
        raise Forbidden(f"a page of {origin[:200]!r} may not use {host[:200]!r}; a proxy between must pass Host on")


def check_local_host(connection: HTTPConnection) -> None:
    """Raises Forbidden where the client knows this machine by another name: a page whose name was bound anew to it."""
    host = connection.headers.get("host", "")
    if not _is_local(host):
        raise Forbidden(
            f"without API keys this frontend is for clients of its own machine, which call it localhost, not "
            f"{host[:200]!r}; make a key with `punica-serve keys create`"
        )


def _netloc(origin: str) -> str | None:
    """None for origins that are no sites, such as "null"."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def _is_local(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or name.endswith(".localhost") or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
