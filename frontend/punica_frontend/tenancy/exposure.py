"""Whether a frontend may run without API keys: only on loopback, unless the operator insists."""

import ipaddress
import logging
import socket

from punica_frontend.tenancy.authenticator import AuthMode, has_keys
from punica_serve.errors import ConfigError
from punica_serve.registry.registry import Registry

log = logging.getLogger(__name__)


def auth_mode_for(listener: socket.socket, registry: Registry, *, insecure_no_auth: bool) -> AuthMode:
    """Returns the authentication mode, and warns if it is off. Raises ConfigError if other hosts could connect then."""
    address = listener.getsockname()[0]
    if insecure_no_auth:
        log.warning("NO AUTHENTICATION (--insecure-no-auth): everyone who can reach %s is an administrator", address)
        return "open"
    if has_keys(registry):
        return "keys"
    if not ipaddress.ip_address(address).is_loopback:
        raise ConfigError(
            f"{address} can be reached from other hosts without an API key, so everyone would be an administrator; "
            "create a key with `punica-serve keys create`, listen on 127.0.0.1, or give --insecure-no-auth",
            param="host",
        )
    log.warning("NO AUTHENTICATION: there is no API key yet, so everyone on this machine is an administrator")
    return "local"
