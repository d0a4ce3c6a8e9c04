"""The certificate authorities that this package's clients trust when they dial a frontend over https."""

import os
import ssl
from pathlib import Path

from punica_serve.errors import ConfigError
from punica_serve.errors.reasons import why_unreadable

#: Names a file with the trusted authorities, in place of the system's.
CA_FILE_ENV = "PUNICA_CA_FILE"


def client_context() -> ssl.SSLContext:
    """Trusts the authorities in CA_FILE_ENV, or else the system's. Raises ConfigError for a file without any."""
    file = os.environ.get(CA_FILE_ENV)
    try:
        return ssl.create_default_context(cafile=file or None)
    except OSError as error:
        why = why_unreadable(Path(file or "")) or "it holds no certificate in PEM format"
        raise ConfigError(f"{CA_FILE_ENV}: {file} can't be used: {why}", param=CA_FILE_ENV) from error
