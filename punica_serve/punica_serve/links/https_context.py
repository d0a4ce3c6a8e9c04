"""TLS between a frontend and its clients."""

import ssl

from punica_serve.config.tls_section import HttpsConfig
from punica_serve.links.ssl_context import bad_file, check_readable, load_pair, shake_hands

_SECTION = "frontend.tls"


def server_context(config: HttpsConfig) -> ssl.SSLContext:
    """A frontend's context. Raises ConfigError for unusable files and for an expired certificate."""
    check_readable({f"{_SECTION}.cert": config.cert, f"{_SECTION}.key": config.key})
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    load_pair(context, config.cert, config.key, section=_SECTION)
    try:
        shake_hands(server=context, client=own_context(config))
    except ssl.SSLCertVerificationError as error:
        why = f"would be refused by clients: {error.verify_message}; renew it"
        raise bad_file(f"{_SECTION}.cert", config.cert, why) from error
    return context


def own_context(config: HttpsConfig) -> ssl.SSLContext:
    """The context of a client that trusts exactly this certificate, and may dial by a name that is not in it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # its authority need not be known
    context.load_verify_locations(config.cert)
    return context
