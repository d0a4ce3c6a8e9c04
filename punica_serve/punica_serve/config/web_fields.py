"""Types of settings that refer to the web: trusted proxies, and origins allowed to call a frontend."""

import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated

from pydantic import AfterValidator, Field

#: An origin as browsers send it: lower case, with a port only if it differs from the scheme's default.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@A-Z]+")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}

#: An IPv6 socket sees an IPv4 peer as ::ffff:A.B.C.D.
_MAPPED_BITS = 96


def _checked_network(text: str) -> str:
    try:
        ip_network(text)
    except ValueError as error:
        raise ValueError("must be an address or a network, such as 10.0.0.7 or 10.0.0.0/8") from error
    return text


def _checked_origin(text: str) -> str:
    scheme = text.partition("://")[0]
    is_default = text.endswith(_DEFAULT_PORTS.get(scheme, "://"))
    if text != ANY_ORIGIN and (is_default or not _ORIGIN.fullmatch(text)):
        raise ValueError(
            'must be an origin as browsers send it, such as "https://app.example.com" or "http://localhost:3000", '
            'without a path and without port 80 or 443; or "*"'
        )
    return text


ANY_ORIGIN = "*"

#: An IP address or network.
Network = Annotated[str, Field(min_length=1), AfterValidator(_checked_network)]
#: An origin (scheme, host and port), or ANY_ORIGIN.
Origin = Annotated[str, Field(min_length=1), AfterValidator(_checked_origin)]


def with_mapped(networks: tuple[str, ...]) -> list[str]:
    """The networks, with IPv4 ones repeated in the form that an IPv6 socket sees."""
    return [str(form) for text in networks for form in _forms(ip_network(text))]


def _forms(network: IPv4Network | IPv6Network) -> list[IPv4Network | IPv6Network]:
    if isinstance(network, IPv6Network):
        return [network]
    return [network, IPv6Network(f"::ffff:{network.network_address}/{_MAPPED_BITS + network.prefixlen}")]
