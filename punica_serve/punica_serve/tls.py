"""TLS on the links of a cluster. Both ends show a certificate, signed by the one authority that both trust.

What is wrong with our own files is found at the start of the process, by a handshake with itself, and not by a peer.
"""

import ssl
from collections.abc import Mapping
from pathlib import Path

from punica_serve.errors import ConfigError
from punica_serve.reasons import why_unreadable
from punica_serve.tls_config import TlsConfig


def server_context(config: TlsConfig) -> ssl.SSLContext:
    """For the end that listens, which has no one in without a certificate. Raises ConfigError."""
    context = _context(config, ssl.PROTOCOL_TLS_SERVER)
    client = _context(config, ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False  # under which names peers reach us is theirs to check
    _check_certificate(config, server=context, client=client)
    return context


def client_context(config: TlsConfig) -> ssl.SSLContext:
    """For an end that dials: the listener's certificate must be of the host in the URL. Raises ConfigError."""
    context = _context(config, ssl.PROTOCOL_TLS_CLIENT)
    unbelieving = _context(config, ssl.PROTOCOL_TLS_CLIENT)
    unbelieving.check_hostname = False
    unbelieving.verify_mode = ssl.CERT_NONE  # it is the client's certificate that is checked here
    _check_certificate(config, server=_context(config, ssl.PROTOCOL_TLS_SERVER), client=unbelieving)
    return context


def check_files(config: TlsConfig) -> None:
    """What is wrong for either end. Whether others trust the certificate, each finds out for itself.

    Raises ConfigError.
    """
    _context(config, ssl.PROTOCOL_TLS_CLIENT)


def _context(config: TlsConfig, protocol: "ssl._SSLMethod") -> ssl.SSLContext:
    _check_readable({"tls.cert": config.cert, "tls.key": config.key, "tls.ca": config.ca})
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(config.ca)
    except ssl.SSLError as error:
        raise _bad("tls.ca", config.ca, "holds no certificate in PEM format") from error
    try:
        context.load_cert_chain(config.cert, config.key, password="")  # never asks at a terminal
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise _bad("tls.key", config.key, f"is not the key of the certificate {config.cert}") from error
        what = f"and its key {config.key} are no pair in PEM format without a password"
        raise _bad("tls.cert", config.cert, what) from error
    return context


def _check_readable(files: Mapping[str, Path]) -> None:
    """Raises ConfigError: a line for each that can't be read."""
    whys = {key: why for key, path in files.items() if (why := why_unreadable(path)) is not None}
    if whys:
        lines = (f"`{key}`: can't read {files[key]}: {why}" for key, why in whys.items())
        raise ConfigError("\n".join(lines), param=next(iter(whys)))


def _check_certificate(config: TlsConfig, *, server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Raises ConfigError where a handshake between the two, in memory, does not come about."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_side=False),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    try:
        while ends:
            ends = [end for end in ends if not _is_done(end)]
    except ssl.SSLCertVerificationError as error:
        what = f"would be refused by peers that trust {config.ca}: {error.verify_message}"
        raise _bad("tls.cert", config.cert, f"{what}; renew it, or have it signed by that authority") from error


def _is_done(end: ssl.SSLObject) -> bool:
    """Whether this end is through with its handshake."""
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _bad(key: str, path: Path, what: str) -> ConfigError:
    return ConfigError(f"`{key}`: {path} {what}", param=key)
