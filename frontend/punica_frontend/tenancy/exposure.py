"""Whether a frontend may be reached without API keys: only from its own machine, unless its operator insists."""

import ipaddress
import logging
import socket

from punica_frontend.tenancy.door import Lock, has_keys
from punica_serve.errors import ConfigError
from punica_serve.registry.registry import Registry

log = logging.getLogger(__name__)


def lock_for(listener: socket.socket, registry: Registry, *, insecure_no_auth: bool) -> Lock:
    """How the door has to be locked. Says so visibly where it is not. Raises ConfigError where it would be for all."""
    address = listener.getsockname()[0]
    if insecure_no_auth:
        log.warning("NO AUTHENTICATION, as told: whoever reaches %s is an administrator", address)
        return "open"
    if has_keys(registry):
        return "keys"
    if not ipaddress.ip_address(address).is_loopback:
        raise ConfigError(
            f"{address} can be reached by others, and there is no API key, so everybody would be an administrator; "
            "make a key with `punica-serve keys create`, or listen on 127.0.0.1, or insist with --insecure-no-auth",
            param="host",
        )
    log.warning("NO AUTHENTICATION: there is no API key yet, so whoever can use this machine is an administrator")
    return "local"
