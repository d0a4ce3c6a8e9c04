"""Why nobody answers, in the words of whoever knows."""

import socket
from collections.abc import Iterator
from threading import Thread

import httpx
import pytest

from ports import free_port
from punica_serve.refusals import no_answer


def _failure(url: str) -> str:
    with pytest.raises(httpx.ConnectError) as caught:
        httpx.get(url, timeout=20.0)
    return str(no_answer(url, caught.value))


@pytest.fixture
def plain_port() -> Iterator[int]:
    """Of something that speaks no TLS, to one client."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            client, _ = server.accept()
            with client:
                client.recv(1000)
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = Thread(target=answer)
        thread.start()
        yield server.getsockname()[1]
        thread.join(20.0)


def test_a_port_without_a_listener_is_told_in_the_systems_words() -> None:
    assert "(Connection refused)" in _failure(f"http://127.0.0.1:{free_port()}")


def test_what_tls_failed_for_is_told_in_its_own(plain_port: int) -> None:
    message = _failure(f"https://127.0.0.1:{plain_port}")
    assert "wrong version number" in message.lower().replace("_", " ") and "not permitted" not in message


def test_a_name_that_is_not_found_is_told_whatever_its_number() -> None:
    error = httpx.ConnectError("all attempts failed")
    error.__cause__ = socket.gaierror(8, "nodename nor servname provided")
    assert "(nodename nor servname provided)" in str(no_answer("http://nowhere", error))
