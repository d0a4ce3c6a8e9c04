"""Protects against requests that another site's page makes a browser send."""

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from punica_serve.errors import Forbidden

#: Methods that change nothing, so a cookie is accepted from any page.
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


def check_cookie_origin(connection: HTTPConnection) -> None:
    """Raises Forbidden for a request with a cookie from another site's page.

    Browsers add cookies to whatever a page requests. A page can't read another site's answers, but it can send, and it
    can read a websocket.
    """
    if connection.scope["type"] == "http" and connection.scope["method"] in _SAFE_METHODS:
        return
    if "origin" not in connection.headers:
        raise Forbidden("a cookie needs an Origin header, which browsers send; use `Authorization: Bearer KEY`")
    check_origin(connection)


def check_origin(connection: HTTPConnection, allowed: Collection[str] = ()) -> None:
    """Raises Forbidden for a request that a browser marks as another site's page's.

    Pages of ``allowed`` origins may send requests, but never with a cookie, which would act for the logged-in user.
    """
    origin, host = connection.headers.get("origin"), connection.headers.get("host", "")
    if origin is not None and origin not in allowed and _netloc(origin) != host.lower():
        raise Forbidden(f"a page of {origin[:200]!r} may not use {host[:200]!r}; proxies must pass the Host header on")


def check_local_host(connection: HTTPConnection) -> None:
    """Raises Forbidden if Host is not this machine: a page may have rebound its own name to this address."""
    host = connection.headers.get("host", "")
    if not _is_local(host):
        raise Forbidden(
            f"without API keys this frontend serves only its own machine, as localhost, not as {host[:200]!r}; "
            "create a key with `punica-serve keys create`"
        )


def _netloc(origin: str) -> str | None:
    """Returns None for origins without a host, such as "null"."""
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
