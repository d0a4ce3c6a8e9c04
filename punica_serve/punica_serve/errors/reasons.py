"""The operating system's reasons, in words for users."""

import os
import socket
import ssl
from pathlib import Path

from punica_serve.errors.plain_files import NotPlain


def reason_of(error: BaseException) -> str:
    """The operating system's words if there are any, without the numbers and addresses that libraries add."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not text in UTF-8"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate can't be trusted: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLError):
        return f"the TLS handshake failed: {error.reason or error}"
    if isinstance(error, OSError) and error.strerror:
        # gaierror has its own numbers, which some libraries repeat as negative errnos; NotPlain has its own words.
        is_system = not isinstance(error, socket.gaierror | NotPlain)
        return os.strerror(error.errno) if is_system and error.errno and error.errno > 0 else error.strerror
    return str(error) or type(error).__name__


def first_line(error: BaseException) -> str:
    """The first line of a library's error, which may go on for pages; the name of its type where it has no text."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def why_unreadable(file: Path) -> str | None:
    """The reason why a file can't be read, in the system's words; None if it can."""
    try:
        file.open("rb").close()
    except OSError as error:
        return reason_of(error)
    return None
