"""Fixtures that several rooms of punica_serve share."""

import socket
from collections.abc import Iterator

import pytest

from punica_serve.bench.free_ports import free_ports


@pytest.fixture
def taken_port() -> Iterator[int]:
    """The one before it is free."""
    _, port = free_ports(2)
    with socket.create_server(("127.0.0.1", port)):
        yield port
