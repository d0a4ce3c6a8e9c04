"""Hosts join a group over TCP: the other end is in this process."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from punica_serve.bench.free_ports import free_port
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.ranks.group_settings import Rendezvous
from punica_serve.engine.ranks.host_connection import dial
from punica_serve.engine.ranks.host_messages import HelloAnswer, HostHello, HostWelcome, RankArrival
from punica_serve.engine.ranks.rank_link import LinkEnded, RankLink
from punica_serve.engine.ranks.rank_loss import RankLost
from punica_serve.engine.ranks.rank_messages import LeaderToRank, RankHello, RankPing, RankPong, group_version
from punica_serve.engine.ranks.rank_ring import RankRing
from punica_serve.engine.ranks.remote_hosts import RemoteHosts
from punica_serve.engine.ranks.ring_frames import read_host_frame
from punica_serve.errors import AdapterRejected, StoreUnavailable
from punica_serve.protocol import AdapterFetched, AdapterRef, FetchAdapter, Message, Refused, WireError, encode

_DEVICES = ("cpu", "cpu", "1/cpu", "1/cpu")
_HELLO = HostHello(group_version(), 1, 2, ("cpu", "cpu"))
_SILENCE_S = 10.0
_DEADLINE_S = 30.0
_REF = AdapterRef("a" * 64, "s3://bucket/a", 1, {"q_proj": 8})


@dataclass
class _Leader:
    rendezvous: Rendezvous
    ring: RankRing
    hosts: RemoteHosts

    def dialled(self, first: Message, union: object) -> RankLink:
        link = RankLink(dial(self.rendezvous, _SILENCE_S), union)
        link.send(first)
        return link

    def joined(self) -> RankLink:
        link = self.dialled(_HELLO, HelloAnswer)
        assert link.await_message(_DEADLINE_S)
        assert isinstance(link.receive(), HostWelcome)
        return link


@pytest.fixture
def leader() -> Iterator[_Leader]:
    rendezvous, ring = Rendezvous("127.0.0.1", free_port(), b"token"), RankRing(2)
    hosts = RemoteHosts(EngineConfig(model=Path("model")), _DEVICES, rendezvous, _SILENCE_S, ring, 1)
    yield _Leader(rendezvous, ring, hosts)
    hosts.close()
    ring.close()


def _frame(link: RankLink) -> bytes:
    """The next frame that is no ping, which is answered."""
    while True:
        assert link.await_message(_DEADLINE_S)
        frame = link.receive_frame()
        ping = read_host_frame(frame) if frame.startswith(b"host") else None
        if not isinstance(ping, RankPing):
            return frame
        link.send(RankPong(ping.number))


def test_a_host_is_told_which_ranks_to_start_and_gets_all_frames(leader: _Leader) -> None:
    assert leader.hosts.absent == [1]
    assert "host 1 did not come to 127.0.0.1" in leader.hosts.why_late()
    leader.ring.write(b"step before it has come", 1.0)
    link = leader.dialled(_HELLO, HelloAnswer)
    assert link.await_message(_DEADLINE_S)
    welcome = link.receive()
    assert (welcome.num_ranks, welcome.first_rank) == (4, 2)
    assert EngineConfig.model_validate_json(welcome.engine).model == Path("model").absolute()
    leader.ring.write(b"step afterwards", 1.0)
    assert [_frame(link), _frame(link)] == [b"step before it has come", b"step afterwards"]
    assert leader.hosts.why_late() == ""
    link.close()


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (
            HostHello("0.0.1", 1, 2, ("cpu", "cpu")),
            "host 1 runs version 0.0.1, host 0 .*; run the same release",
        ),
        (HostHello(group_version(), 1, 3, ("cpu", "cpu")), "host 1 has `runner.hosts: 3`, host 0 2; set the same"),
        (HostHello(group_version(), 2, 2, ("cpu", "cpu")), "there is no host 2 in this group of 2"),
        (HostHello(group_version(), 1, 2, ("cpu",)), "host 1 has the devices cpu, host 0 cpu,cpu; set the same"),
    ],
)
def test_a_host_that_does_not_fit_is_refused_by_name(leader: _Leader, hello: HostHello, reason: str) -> None:
    link = leader.dialled(hello, HelloAnswer)
    assert link.await_message(_DEADLINE_S)
    answer = link.receive()
    assert isinstance(answer, Refused)
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(answer.error.message)
    link.close()
    leader.joined().close()


def test_two_hosts_of_one_number_are_found_out(leader: _Leader) -> None:
    first = leader.joined()
    second = leader.dialled(_HELLO, HelloAnswer)
    assert second.await_message(_DEADLINE_S)
    assert "host 1 has joined already" in second.receive().error.message
    first.close()
    second.close()


def test_a_rank_speaks_over_a_connection_of_its_own(leader: _Leader) -> None:
    host = leader.joined()
    theirs = leader.dialled(RankArrival(3), LeaderToRank)
    rank = leader.hosts.ranks[1]
    ours = rank.joined.result(_DEADLINE_S)
    hello = RankHello("1", "digest", "gloo", "", "cpu", 0)
    theirs.send(hello)
    assert ours.await_message(_DEADLINE_S)
    assert ours.receive() == hello
    rank.tell(RankPing(7))
    assert theirs.await_message(_DEADLINE_S)
    assert theirs.receive() == RankPing(7)
    theirs.close()
    assert rank.stop(_DEADLINE_S)
    host.close()


def test_a_host_that_leaves_takes_its_ranks_along(leader: _Leader) -> None:
    """One of them has come, and the other has not."""
    host = leader.joined()
    theirs = leader.dialled(RankArrival(2), LeaderToRank)
    here, never = leader.hosts.ranks
    here.joined.result(_DEADLINE_S)
    fetch = leader.hosts.fetch(_REF)[0]
    host.close()
    with pytest.raises(RankLost, match=r"rank 3 \(1/cpu\) is lost: host 1 has left the group"):
        never.joined.result(_DEADLINE_S)
    with pytest.raises(StoreUnavailable, match="host 1 has left the group"):
        fetch.result(_DEADLINE_S)
    assert theirs.await_message(_DEADLINE_S)
    with pytest.raises(LinkEnded):
        theirs.receive()
    with pytest.raises(StoreUnavailable):
        leader.hosts.fetch(_REF)[0].result(_DEADLINE_S)
    theirs.close()


def test_a_host_that_answers_no_more_pings_has_left() -> None:
    """It may be long in starting its ranks before the first answer. Its ranks may still answer theirs."""
    rendezvous, ring = Rendezvous("127.0.0.1", free_port(), b"token"), RankRing(2)
    hosts = RemoteHosts(EngineConfig(model=Path("model")), _DEVICES, rendezvous, 0.2, ring, 1)
    leader = _Leader(rendezvous, ring, hosts)
    link = leader.joined()
    for _ in range(10):
        number = read_host_frame(link.receive_frame())
    assert number == RankPing(10)
    link.send(RankPong(10))
    with pytest.raises(RankLost, match=r"rank 2 \(1/cpu\) is lost: host 1 has left the group"):
        hosts.ranks[0].joined.result(_DEADLINE_S)
    link.close()
    hosts.close()
    ring.close()


def test_adapters_files_are_fetched_there(leader: _Leader) -> None:
    host = leader.joined()
    for answer, kind in (
        (AdapterFetched(_REF.digest, "/there"), None),
        (AdapterFetched(_REF.digest, error=WireError("x", "slow")), StoreUnavailable),
        (AdapterFetched(_REF.digest, error=WireError("x", "wrong"), is_permanent=True), AdapterRejected),
    ):
        (fetch,) = leader.hosts.fetch(_REF)
        assert read_host_frame(_frame(host)) == FetchAdapter(_REF)
        host.send_frame(encode(answer))
        assert (error := fetch.exception(_DEADLINE_S)) is None or type(error) is kind
        assert (error is None) == (kind is None)
    host.close()
