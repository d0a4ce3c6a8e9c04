"""Both ends of a connection between hosts prove that they know the cluster's token."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest

from punica_serve.engine.ranks import host_connection
from punica_serve.engine.ranks.group_settings import Rendezvous
from punica_serve.engine.ranks.host_connection import NotProven, TcpConnection, accept, dial, listen
from punica_serve.errors import ClusterUnavailable, ConfigError

_SILENCE_S = 10.0
_DEADLINE_S = 30.0


@contextmanager
def _listening(key: bytes = b"token") -> Iterator[tuple[Rendezvous, socket.socket]]:
    with listen(Rendezvous("127.0.0.1", 0, key)) as sock:
        yield Rendezvous("127.0.0.1", sock.getsockname()[1], key), sock


def _accepted(sock: socket.socket, key: bytes) -> TcpConnection:
    return accept(sock.accept()[0], key, _SILENCE_S)


def test_ends_with_one_token_exchange_messages() -> None:
    with _listening() as (rendezvous, sock), ThreadPoolExecutor(1) as thread:
        accepting = thread.submit(_accepted, sock, rendezvous.key)
        with dial(rendezvous, _SILENCE_S) as ours, accepting.result(_DEADLINE_S) as theirs:
            ours.send_bytes(b"hello")
            assert theirs.recv_bytes() == b"hello"


def test_neither_end_takes_another_token() -> None:
    with _listening() as (rendezvous, sock), ThreadPoolExecutor(1) as thread:
        accepting = thread.submit(_accepted, sock, rendezvous.key)
        with pytest.raises(NotProven, match=r"^the cluster token of host 0 at 127\.0\.0\.1:\d+ is not this host's"):
            dial(replace(rendezvous, key=b"other"), _SILENCE_S)
        with pytest.raises(NotProven, match="its cluster token is not this host's"):
            accepting.result(_DEADLINE_S)


def _connected(rendezvous: Rendezvous) -> TcpConnection:
    """A stranger's."""
    return host_connection._connection(socket.create_connection((rendezvous.host, rendezvous.port)))


@pytest.mark.parametrize("answer", [b"", bytes(32), bytes(64), bytes(100)])
def test_whoever_has_not_proved_itself_gets_no_proof(answer: bytes) -> None:
    """From a proof a weak token could be guessed, away from the cluster."""
    with _listening() as (rendezvous, sock), ThreadPoolExecutor(1) as thread:
        accepting = thread.submit(_accepted, sock, rendezvous.key)
        with _connected(rendezvous) as stranger:
            assert len(stranger.recv_bytes()) == 32
            stranger.send_bytes(answer)
            assert stranger.recv_bytes() == b""
            with pytest.raises(EOFError):
                stranger.recv_bytes()
        with pytest.raises(NotProven, match="its cluster token is not this host's"):
            accepting.result(_DEADLINE_S)


def test_proofs_hold_once() -> None:
    """A stranger in the middle of one handshake sends either end's messages again in the next."""
    with _listening() as (leader, sock), _listening() as (between, middle), ThreadPoolExecutor(2) as threads:
        dialling, accepting = threads.submit(dial, between, _SILENCE_S), threads.submit(_accepted, sock, leader.key)
        with _connected(leader) as to_leader, host_connection._connection(middle.accept()[0]) as to_host:
            to_host.send_bytes(nonce := to_leader.recv_bytes())
            to_leader.send_bytes(hosts_proof := to_host.recv_bytes())
            to_host.send_bytes(leaders_proof := to_leader.recv_bytes())
            dialling.result(_DEADLINE_S).close()
            accepting.result(_DEADLINE_S).close()

        dialling, accepting = threads.submit(dial, between, _SILENCE_S), threads.submit(_accepted, sock, leader.key)
        with _connected(leader) as to_leader, host_connection._connection(middle.accept()[0]) as to_host:
            to_leader.send_bytes(hosts_proof)
            to_host.send_bytes(nonce)
            to_host.send_bytes(leaders_proof)
            for end in (dialling, accepting):
                with pytest.raises(NotProven, match="cluster token"):
                    end.result(_DEADLINE_S)


def test_a_host_takes_none_of_its_own_messages_for_the_leaders() -> None:
    """One that listens in the leader's place, without the token, sends back what it got."""
    with listen(Rendezvous("127.0.0.1", 0, b"")) as sock, ThreadPoolExecutor(1) as thread:
        dialling = thread.submit(dial, Rendezvous("127.0.0.1", sock.getsockname()[1], b"token"), _SILENCE_S)
        with host_connection._connection(sock.accept()[0]) as impostor:
            impostor.send_bytes(bytes(32))
            nonce_and_proof = impostor.recv_bytes()
            impostor.send_bytes(nonce_and_proof[32:])
            with pytest.raises(NotProven, match="the cluster token of host 0"):
                dialling.result(_DEADLINE_S)


def test_one_that_says_nothing_is_refused_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_connection, "_HANDSHAKE_TIMEOUT_S", 0.2)
    with _listening() as (rendezvous, sock), ThreadPoolExecutor(1) as thread:
        accepting = thread.submit(_accepted, sock, rendezvous.key)
        silent = socket.create_connection((rendezvous.host, rendezvous.port))
        with silent, pytest.raises(NotProven, match="did not prove"):
            accepting.result(_DEADLINE_S)


def test_nobody_at_the_address_is_told() -> None:
    with _listening() as (rendezvous, _):
        pass
    with pytest.raises(ClusterUnavailable, match=r"host 0 can't be reached at 127\.0\.0\.1:\d+: Connection refused"):
        dial(rendezvous, _SILENCE_S)


def test_an_address_of_another_host_is_told() -> None:
    with pytest.raises(ConfigError, match=r"can't listen on 192\.0\.2\.1:29500: .*set `runner.rendezvous`"):
        listen(Rendezvous("192.0.2.1", 29500, b""))


def test_a_name_that_means_this_host_alone_is_told() -> None:
    """As /etc/hosts often has it for a host's own name."""
    with pytest.raises(ConfigError, match=r"127\.1 is 127\.0\.0\.1 on this host, which other hosts can't reach"):
        listen(Rendezvous("127.1", 0, b""))
    listen(Rendezvous("localhost", 0, b"")).close()


def test_a_token_is_in_no_message() -> None:
    assert "secret" not in repr(Rendezvous.of("10.0.0.1:29500", "secret"))
    assert str(Rendezvous.of("[fd00::1]:29500", "secret")) == "[fd00::1]:29500"
