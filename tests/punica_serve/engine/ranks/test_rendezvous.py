"""Ranks that meet at a port."""

import socket
import sys

import pytest
import torch
import torch.distributed as dist

from punica_serve.base_model.rank import Rank
from punica_serve.engine.ranks.mapped_memory import timeout_of
from punica_serve.engine.ranks.rank_loss import RankLost
from punica_serve.engine.ranks.rendezvous import join, leave, open_port

_CPU = torch.device("cpu")


def test_a_rank_that_never_comes_is_named() -> None:
    with pytest.raises(RankLost, match=r"^rank 1 and rank 2 did not come to where the ranks meet within 0\.1 s$"):
        join(open_port("127.0.0.1", 10.0), _CPU, Rank(0, 3), 0.1)
    assert not dist.is_initialized()


def test_one_that_is_known_to_be_lost_ends_the_wait() -> None:
    def check() -> None:
        raise RankLost("rank 1 (cpu) died")

    with pytest.raises(RankLost, match=r"^rank 1 \(cpu\) died$"):
        join(open_port("127.0.0.1", 10.0), _CPU, Rank(0, 2), 300.0, check)


def test_one_that_comes_and_then_dies_ends_the_wait_and_the_next_group_can_meet() -> None:
    """It has told the others that it is there, and nothing more. New processes call their first group "0"."""
    store = open_port("127.0.0.1", 10.0)
    store.set("votes/join/1", "")
    with pytest.raises(RankLost, match=r"^the ranks could not join within 0\.5 s: "):
        join(store, _CPU, Rank(0, 2), 0.5)
    group = join(open_port("127.0.0.1", 10.0), _CPU, Rank(0, 1), 10.0).group
    assert group.group_name == "0"
    leave()


def test_groups_leave_the_hook_for_uncaught_errors_as_it_is() -> None:
    hook = sys.excepthook
    join(open_port("127.0.0.1", 10.0), _CPU, Rank(0, 1), 10.0)
    leave()
    assert sys.excepthook is hook


def test_the_store_listens_at_its_own_address_alone() -> None:
    """Anybody who reaches it may read and write, so other hosts must not reach the one of a group on one host."""
    store = open_port("127.0.0.1", 10.0)
    socket.create_connection(("127.0.0.1", store.port), 10.0).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", store.port), 10.0)


def test_a_leader_has_time_to_reach_its_own_store_however_short_its_waits_are() -> None:
    """Its process may have no core for longer than that."""
    store = open_port("127.0.0.1", 1e-3)
    assert timeout_of(store).total_seconds() == 1e-3
