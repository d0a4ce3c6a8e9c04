"""Connections to a group's leader, among them some of strangers."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from queue import SimpleQueue

import pytest

from punica_serve.bench.free_ports import free_port
from punica_serve.engine.ranks import group_listener, host_connection
from punica_serve.engine.ranks.group_listener import GroupListener
from punica_serve.engine.ranks.group_settings import Rendezvous
from punica_serve.engine.ranks.host_connection import NotProven, TcpConnection, dial
from punica_serve.engine.ranks.host_messages import FirstMessage, RankArrival
from punica_serve.protocol import encode
from waits import until

_SILENCE_S = 10.0
_DEADLINE_S = 30.0


@contextmanager
def _listening() -> "Iterator[tuple[Rendezvous, SimpleQueue[FirstMessage]]]":
    rendezvous = Rendezvous("127.0.0.1", free_port(), b"token")
    admitted: SimpleQueue[FirstMessage] = SimpleQueue()

    def admit(message: FirstMessage, connection: TcpConnection) -> None:
        admitted.put(message)
        connection.close()

    listener = GroupListener(rendezvous, _SILENCE_S, admit)
    try:
        yield rendezvous, admitted
    finally:
        listener.close()


def _arrive(rendezvous: Rendezvous, rank: int) -> None:
    with dial(rendezvous, _SILENCE_S) as connection:
        connection.send_bytes(encode(RankArrival(rank)))


def test_strangers_that_say_nothing_hold_up_no_rank() -> None:
    with _listening() as (rendezvous, admitted), ExitStack() as opened:
        for _ in range(group_listener._MAX_ARRIVING - 1):
            opened.enter_context(socket.create_connection((rendezvous.host, rendezvous.port)))
        _arrive(rendezvous, 3)
        assert admitted.get(timeout=_DEADLINE_S) == RankArrival(3)


async def test_strangers_leave_their_places_to_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(host_connection, "_HANDSHAKE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(group_listener, "_MAX_ARRIVING", 2)
    monkeypatch.setattr(group_listener, "_LOG_EVERY_S", 0.0)
    with _listening() as (rendezvous, admitted), ExitStack() as opened:
        for _ in range(4):
            opened.enter_context(socket.create_connection((rendezvous.host, rendezvous.port)))
        await until(lambda: caplog.text.count("did not prove that it knows the cluster's token") == 4)
        monkeypatch.setattr(host_connection, "_HANDSHAKE_TIMEOUT_S", _DEADLINE_S)
        _arrive(rendezvous, 3)
        assert admitted.get(timeout=_DEADLINE_S) == RankArrival(3)


async def test_strangers_fill_no_log_and_hide_no_host(caplog: pytest.LogCaptureFixture) -> None:
    with _listening() as (rendezvous, admitted):
        for _ in range(40):
            with pytest.raises(NotProven):
                dial(replace(rendezvous, key=b"other"), _SILENCE_S)
        with dial(rendezvous, _SILENCE_S) as connection:
            connection.send_bytes(b"hello")
            await until(lambda: len(caplog.messages) > 1)
        _arrive(rendezvous, 3)
        assert admitted.get(timeout=_DEADLINE_S) == RankArrival(3)
    refused = "refused a connection to the group from 127.0.0.1: "
    stranger, host = caplog.messages
    assert stranger == f"{refused}its cluster token is not this host's"
    assert host.startswith(refused) and "token" not in host


@pytest.mark.parametrize("first", [b"", b"hello", bytes(100_000)])
async def test_a_first_message_that_is_none_is_refused(first: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with _listening() as (rendezvous, admitted):
        with dial(rendezvous, _SILENCE_S) as connection:
            connection.send_bytes(first)
            await until(lambda: "refused a connection to the group from 127.0.0.1" in caplog.text)
        _arrive(rendezvous, 3)
        assert admitted.get(timeout=_DEADLINE_S) == RankArrival(3)


def test_a_failure_to_accept_ends_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """As where the process has no free file descriptors."""
    monkeypatch.setattr(group_listener, "_PAUSE_S", 0.01)
    failures = iter([OSError(24, "Too many open files")])
    take = socket.socket.accept

    def accept(sock: socket.socket) -> tuple[socket.socket, object]:
        for failure in failures:
            raise failure
        return take(sock)

    monkeypatch.setattr(socket.socket, "accept", accept)
    with _listening() as (rendezvous, admitted):
        _arrive(rendezvous, 3)
        assert admitted.get(timeout=_DEADLINE_S) == RankArrival(3)
    assert "can't accept connections to the group: Too many open files; trying again" in caplog.text
