"""The start of a group's exchanges."""

from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from punica_serve.base_model.rank import Rank
from punica_serve.engine.ranks import exchange_start
from punica_serve.engine.ranks.exchange_choice import ExchangeChoice
from punica_serve.engine.ranks.start_votes import StartVotes
from punica_serve.engine.ranks.torch_collectives import TorchCollectives

_CPU = torch.device("cpu")
_WIDTH = 24


def test_ranks_whose_processes_have_mapped_unequally_often_do_not_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = iter((0, 2))
    monkeypatch.setattr(exchange_start, "num_mappings", lambda: next(counts))
    store, choice = HashStore(), ExchangeChoice(((64, "one_shot"),))

    def fault_of(index: int) -> str | None:
        library = cast(TorchCollectives, object())  # it is not asked for anything
        votes = StartVotes(store, Rank(index, 2))
        chosen, fault = exchange_start._mapped(library, choice, _WIDTH, torch.bfloat16, _CPU, votes, None)
        assert chosen is None
        return fault

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(fault_of, range(2))
    assert first == second
    assert "has been in an earlier group" in (first or "")
