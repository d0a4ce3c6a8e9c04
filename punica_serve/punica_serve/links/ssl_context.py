"""Mutual TLS on the links of a cluster: both ends show a certificate, signed by the authority that both trust.

A process checks its own files when it starts, by a handshake with itself, before any peer can reject them.
"""

import ssl
from collections.abc import Mapping
from pathlib import Path

from punica_serve.config.tls_section import TlsConfig
from punica_serve.errors import ConfigError
from punica_serve.errors.reasons import why_unreadable


def server_context(config: TlsConfig) -> ssl.SSLContext:
    """The context of the listening end, which requires a certificate of its peers. Raises ConfigError."""
    context = _context(config, ssl.PROTOCOL_TLS_SERVER)
    client = _context(config, ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False  # peers check the name by which they reach this host
    _check_certificate(config, server=context, client=client)
    return context


def client_context(config: TlsConfig) -> ssl.SSLContext:
    """The context of a dialling end; the listener's certificate must match the URL's host. Raises ConfigError."""
    context = _context(config, ssl.PROTOCOL_TLS_CLIENT)
    unbelieving = _context(config, ssl.PROTOCOL_TLS_CLIENT)
    unbelieving.check_hostname = False
    unbelieving.verify_mode = ssl.CERT_NONE  # only the client's certificate is checked here
    _check_certificate(config, server=_context(config, ssl.PROTOCOL_TLS_SERVER), client=unbelieving)
    return context


def check_files(config: TlsConfig) -> None:
    """Checks the files for either end. Raises ConfigError. Whether peers trust the certificate shows at the dial."""
    _context(config, ssl.PROTOCOL_TLS_CLIENT)


def _context(config: TlsConfig, protocol: "ssl._SSLMethod") -> ssl.SSLContext:
    check_readable({"tls.cert": config.cert, "tls.key": config.key, "tls.ca": config.ca})
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(config.ca)
    except ssl.SSLError as error:
        raise bad_file("tls.ca", config.ca, "holds no certificate in PEM format") from error
    load_pair(context, config.cert, config.key, section="tls")
    return context


def load_pair(context: ssl.SSLContext, cert: Path, key: Path, *, section: str) -> None:
    """Loads a certificate and its key, which the config names in ``section``. Raises ConfigError."""
    try:
        context.load_cert_chain(cert, key, password="")  # never asks at a terminal
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise bad_file(f"{section}.key", key, f"is not the key of the certificate {cert}") from error
        what = f"and its key {key} are not a pair in PEM format without a password"
        raise bad_file(f"{section}.cert", cert, what) from error


def check_readable(files: Mapping[str, Path]) -> None:
    """Raises ConfigError, with a line for each file that can't be read."""
    whys = {key: why for key, path in files.items() if (why := why_unreadable(path)) is not None}
    if whys:
        lines = (f"`{key}`: can't read {files[key]}: {why}" for key, why in whys.items())
        raise ConfigError("\n".join(lines), param=next(iter(whys)))


def _check_certificate(config: TlsConfig, *, server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Raises ConfigError if a handshake between the two fails."""
    try:
        shake_hands(server=server, client=client)
    except ssl.SSLCertVerificationError as error:
        what = f"would be refused by peers that trust {config.ca}: {error.verify_message}"
        raise bad_file("tls.cert", config.cert, f"{what}; renew it, or have it signed by that authority") from error


def shake_hands(*, server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Does a TLS handshake in memory. Raises SSLCertVerificationError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_side=False),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while ends:
        ends = [end for end in ends if not _is_done(end)]


def _is_done(end: ssl.SSLObject) -> bool:
    """Whether this end has finished its handshake."""
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def bad_file(key: str, path: Path, what: str) -> ConfigError:
    """An error to raise: the file at ``path``, which the config's ``key`` names, is unusable because ``what``."""
    return ConfigError(f"`{key}`: {path} {what}", param=key)
