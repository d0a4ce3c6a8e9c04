"""The socket between a leader and a rank, within this process."""

import multiprocessing
import os

import pytest

from punica_serve.engine.ranks.rank_link import LinkEnded, RankLink
from punica_serve.engine.ranks.rank_messages import LeaderToRank, RankPing, RankToLeader


def _links() -> tuple[RankLink, RankLink]:
    """A leader's and a rank's end."""
    ours, theirs = multiprocessing.Pipe()
    return RankLink(ours, RankToLeader), RankLink(theirs, LeaderToRank)


def test_a_silence_ends_and_so_does_the_wait_for_a_message() -> None:
    leader, rank = _links()
    assert not rank.await_message(0.01)
    leader.send(RankPing(3))
    assert rank.await_message(60.0)
    assert rank.receive() == RankPing(3)
    assert not rank.await_message(0.01)


def test_the_end_of_a_link_is_no_silence() -> None:
    leader, rank = _links()
    leader.close()
    assert rank.await_message(60.0)
    with pytest.raises(LinkEnded):
        rank.receive()


def test_a_message_that_stops_halfway_ends_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("punica_serve.engine.ranks.rank_link._MESSAGE_TIMEOUT_S", 1)
    ours, theirs = multiprocessing.Pipe()
    rank = RankLink(theirs, LeaderToRank)
    with ours:
        os.write(ours.fileno(), b"\0\0")
        with pytest.raises(LinkEnded):
            rank.receive()


def test_a_message_that_is_too_long_ends_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a network, whoever sits between two hosts could send gigabytes."""
    monkeypatch.setattr("punica_serve.engine.ranks.rank_link._MAX_BYTES", 100)
    ours, theirs = multiprocessing.Pipe()
    rank = RankLink(theirs, LeaderToRank)
    with ours:
        ours.send_bytes(bytes(100))
        ours.send_bytes(bytes(101))
        assert rank.receive_frame() == bytes(100)
        with pytest.raises(LinkEnded):
            rank.receive_frame()
    rank.close()
