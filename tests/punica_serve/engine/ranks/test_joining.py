"""A group that is joined while the start goes on."""

import threading

import pytest
import torch

from punica_serve.base_model.rank import SINGLE, Rank
from punica_serve.engine.ranks.joining import Joining
from punica_serve.engine.ranks.rank_loss import RankLost
from punica_serve.engine.ranks.rendezvous import join, leave, open_port
from punica_serve.models.collectives import SINGLE_RANK, Collectives
from waits import DEADLINE_S


def test_the_start_goes_on_while_ranks_join() -> None:
    goes_on = threading.Event()

    def join_others() -> Collectives:
        assert goes_on.wait(DEADLINE_S)
        return SINGLE_RANK

    joining = Joining(SINGLE, join_others, in_background=True)
    assert joining.wait(goes_on.set) is SINGLE_RANK, "its owner is called while it waits"


def test_a_real_group_joins_on_a_thread() -> None:
    store, rank = open_port("127.0.0.1", DEADLINE_S), Rank(0, 1)
    joining = Joining(rank, lambda: join(store, torch.device("cpu"), rank, DEADLINE_S), in_background=True)
    try:
        assert joining.wait().all_reduce(torch.ones(2)).tolist() == [1.0, 1.0]
    finally:
        leave()


@pytest.mark.parametrize("in_background", [True, False])
def test_a_rank_that_never_comes_is_named(*, in_background: bool) -> None:
    store, rank = open_port("127.0.0.1", DEADLINE_S), Rank(0, 2)
    with pytest.raises(RankLost, match="rank 1 did not come"):
        Joining(rank, lambda: join(store, torch.device("cpu"), rank, 0.1), in_background=in_background).wait()


def test_a_wait_ends_by_an_error_of_its_owner() -> None:
    never = threading.Event()

    def join_others() -> Collectives:
        never.wait(DEADLINE_S)
        return SINGLE_RANK

    def check() -> None:
        raise RankLost("rank 1 (cpu) died")

    with pytest.raises(RankLost, match="died"):
        Joining(SINGLE, join_others, in_background=True).wait(check)
    never.set()
