"""The start of a group's exchanges."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from punica_serve.base_model.rank import Rank
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.ranks import exchange_start
from punica_serve.engine.ranks.exchange_choice import ExchangeChoice
from punica_serve.engine.ranks.start_votes import StartVotes
from punica_serve.engine.ranks.torch_collectives import TorchCollectives
from punica_serve.models.collectives import Collectives
from tiny_config import tiny_config

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


@pytest.mark.parametrize("exchange", ["auto", "nccl", "fused", "flashinfer"])
def test_a_kernel_that_cpus_lack_is_not_ignored_without_a_word(exchange: str, caplog: pytest.LogCaptureFixture) -> None:
    config = EngineConfig.model_validate({"model": Path("m"), "exchange": exchange})
    library = cast(Collectives, object())  # it is not asked for anything
    with ExitStack() as opened:
        chosen = exchange_start.exchanges_of(library, config, tiny_config(), torch.float32, _CPU, opened)
    assert chosen is library
    said = f"`engine.exchange` is {exchange}, but sums over ranks are left to the library: it has no kernel for cpu"
    assert caplog.messages == ([said] if exchange in ("fused", "flashinfer") else [])
