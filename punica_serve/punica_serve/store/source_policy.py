"""Which URIs a caller may register adapters from, and which addresses those may lead to."""

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import quote, unquote, urlsplit

from punica_serve.config.store_section import SourcesConfig
from punica_serve.errors import Forbidden, InvalidRequest

SCHEMES = ("file", "s3", "hf", "https", "http")

#: Spaces, control characters, and characters that URL parsers interpret differently.
_UNSAFE = re.compile(r"[\x00-\x20\x7f-\xa0\\?#]")

#: IPv6 addresses that a gateway translates to the IPv4 address in their last 32 bits.
_NAT64 = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class SourcePolicy:
    """One caller's permissions. Administrators may use any place."""

    config: SourcesConfig
    is_admin: bool

    def admit(self, uri: str) -> str:
        """The URI in canonical form. Raises InvalidRequest, and Forbidden if this caller may not use it."""
        plain = plain_uri(uri)
        if not self.is_admin and not any(begins_with(plain, prefix) for prefix in self.config.allowed):
            allowed = ", ".join(self.config.allowed) or "nowhere"
            message = f"adapters may be registered from {allowed}, or uploaded; not from {plain[:200]!r}"
            raise Forbidden(message, param="uri")
        return plain

    def may_reach(self, address: str) -> bool:
        """Whether connecting to this resolved address is allowed."""
        ip = ip_address(address)
        return self.is_admin or _is_public(ip) or any(ip in network for network in self.config.private_networks)


def plain_uri(uri: str) -> str:
    """The canonical URI of an adapter's folder: scheme and host in lower case, no trailing slash."""
    if uri.startswith("/"):
        uri = f"file://{quote(uri)}"
    scheme, separator, rest = uri.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in SCHEMES:
        schemes = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise InvalidRequest(f"{uri[:200]!r} must begin with one of {schemes}", param="uri")
    host, slash, path = rest.partition("/")
    folder = unquote(path)
    if _UNSAFE.search(uri) or "\0" in folder or not {".", ".."}.isdisjoint(folder.split("/")):
        message = "must be the plain URI of a folder, without .. segments, spaces, null characters, query or fragment"
        raise InvalidRequest(f"{uri[:200]!r} {message}", param="uri")
    if (scheme == "file" and host) or (scheme != "file" and not host):
        raise InvalidRequest(f"{uri[:200]!r} must name {'no host' if host else 'a host or bucket'}", param="uri")
    if scheme in ("http", "https"):
        host = _checked_host(uri, host.lower())
    elif "::" in rest:  # fsspec would take what follows for another URL
        raise InvalidRequest(f"{uri[:200]!r} must be one URI", param="uri")
    return f"{scheme}://{host}{slash}{path}".rstrip("/")


def begins_with(uri: str, prefix: str) -> bool:
    """Whether ``uri`` begins with ``prefix`` up to a slash: s3://a/b is a prefix of s3://a/b/c, but not of s3://a/bc."""
    return uri == prefix or uri.startswith(prefix if prefix.endswith("/") else f"{prefix}/")


def _checked_host(uri: str, host: str) -> str:
    try:
        parts = urlsplit(f"//{host}")
        is_plain = parts.hostname and "@" not in host and (parts.port is None or parts.port > 0)
    except ValueError:  # the port is not a number, or the address is malformed
        is_plain = False
    if not is_plain:
        raise InvalidRequest(f"{uri[:200]!r} must name a host, without a user or password", param="uri")
    return host


def _is_public(ip: IPv4Address | IPv6Address) -> bool:
    """Also checks an IPv4 address embedded in an IPv6 address."""
    if isinstance(ip, IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo and ip.teredo[1])
        if ip in _NAT64:
            inner = IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner:
            return _is_public(inner)
    return ip.is_global and not ip.is_multicast and not ip.is_reserved
