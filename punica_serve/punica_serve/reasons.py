"""Why the system refused something."""

import os
import socket
import ssl
from pathlib import Path

from punica_serve.plain_files import NotPlain


def reason_of(error: BaseException) -> str:
    """The system's own words where there are any: libraries put numbers and addresses round them."""
    if isinstance(error, UnicodeDecodeError):
        return "it is no text in UTF-8"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate can't be trusted: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS with it: {error.reason or error}"
    if isinstance(error, OSError) and error.strerror:
        # Name look-up has numbers of its own, negative ones where libraries repeat them; the other has its own words.
        is_system = not isinstance(error, socket.gaierror | NotPlain)
        return os.strerror(error.errno) if is_system and error.errno and error.errno > 0 else error.strerror
    return str(error) or type(error).__name__


def why_unreadable(file: Path) -> str | None:
    """In the system's words; None where the file can be read."""
    try:
        file.open("rb").close()
    except OSError as error:
        return reason_of(error)
    return None
