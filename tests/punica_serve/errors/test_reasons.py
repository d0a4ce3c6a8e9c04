import errno
import socket
import ssl

import pytest

from punica_serve.errors.reasons import first_line, reason_of


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)"), "Connection refused"),
        (socket.gaierror(8, "nodename nor servname provided"), "nodename nor servname provided"),
        (OSError(-2, "Name or service not known"), "Name or service not known"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "it is not text in UTF-8"),
        (ValueError("in its own words"), "in its own words"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_the_systems_own_words_where_there_are_any(error: BaseException, reason: str) -> None:
    assert reason_of(error) == reason


@pytest.mark.parametrize(("text", "line"), [("no kernel image\nis available", "no kernel image"), ("", "MemoryError")])
def test_the_first_line_of_an_error_or_its_type(text: str, line: str) -> None:
    assert first_line(MemoryError(text)) == line


def test_why_there_is_no_tls() -> None:
    client = ssl.create_default_context().wrap_bio(incoming := ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="x")
    incoming.write(b"HTTP/1.1 400 Bad Request")
    with pytest.raises(ssl.SSLError) as caught:
        client.do_handshake()
    assert reason_of(caught.value) == "the TLS handshake failed: WRONG_VERSION_NUMBER"
