import logging
import resource
import socket
import sys

import pytest

from punica_frontend.http.listener import (
    NUM_RESERVED_FILES,
    SEND_BUFFER_BYTES,
    SEND_TIMEOUT_S,
    bind,
    num_connections,
    raise_file_limit,
)
from punica_serve.errors import ConfigError


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.7", "a..b", "\udcff"])
def test_an_address_that_is_not_ours(host: str) -> None:
    with pytest.raises(ConfigError, match=f"can't listen on {host}:8000"), bind(host, 8000):
        pass


def test_a_listener_is_closed_in_the_end() -> None:
    with bind("127.0.0.1", 0) as listener:
        address = listener.getsockname()
        socket.create_connection(address).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of these")
def test_connections_are_watched_by_the_kernel() -> None:
    with bind("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1000 * SEND_TIMEOUT_S
            # Linux doubles it, for its own book-keeping.
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * SEND_BUFFER_BYTES


def test_the_limit_of_open_files_is_raised_as_far_as_it_goes() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1_000), hard))
    try:
        assert raise_file_limit() == hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_limit_that_is_too_low_is_said_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    assert num_connections(10_000, file_limit=1_024) == 1_024 - NUM_RESERVED_FILES
    message = caplog.records[0].getMessage()
    assert "limit of 1024 open files" in message and "10000" in message and "ulimit -n" in message


def test_a_limit_that_is_high_enough_is_not_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert num_connections(10_000, file_limit=20_000) == 10_000
    assert not caplog.records
