"""Errors for a frontend that does not answer say why, and what to do."""

import socket
from collections.abc import Iterator
from threading import Thread

import httpx
import pytest

from punica_serve.bench.free_ports import free_port
from punica_serve.links.client_errors import no_answer


def _failure(url: str) -> str:
    with pytest.raises(httpx.ConnectError) as caught:
        httpx.get(url, timeout=20.0)
    return str(no_answer(url, caught.value))


@pytest.fixture
def plain_port() -> Iterator[int]:
    """The port of a server that does not speak TLS; it answers one client."""
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


def test_a_failed_tls_handshake_is_explained(plain_port: int) -> None:
    message = _failure(f"https://127.0.0.1:{plain_port}")
    assert "wrong version number" in message.lower().replace("_", " ") and "not permitted" not in message


def test_a_failed_name_look_up_is_explained_whatever_its_number() -> None:
    error = httpx.ConnectError("all attempts failed")
    error.__cause__ = socket.gaierror(8, "nodename nor servname provided")
    assert "(nodename nor servname provided)" in str(no_answer("http://nowhere", error))
