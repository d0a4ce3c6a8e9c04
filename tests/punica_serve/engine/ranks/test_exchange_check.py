"""The sums by which a group confirms its exchanges. Exchanges of GPUs are played, and so is the wait for them."""

from typing import cast

import pytest
import torch
from torch import Tensor

from punica_serve.base_model.rank import Rank
from punica_serve.engine.ranks import exchange_check
from punica_serve.engine.ranks.exchange_check import find_fault
from punica_serve.engine.ranks.exchange_choice import ExchangeChoice
from punica_serve.engine.ranks.symmetric_sums import ChosenCollectives

_CPU = torch.device("cpu")


class _Sums:
    """Rank 1 of two, which gets right sums of known values, but for those whose numbers it is given."""

    rank = Rank(1, 2)
    choice = ExchangeChoice(((64, "one_shot"), (128, "nccl"), (256, "two_shot")))

    def __init__(self, wrong: set[int]) -> None:
        self._wrong = wrong
        self.num_sums = 0

    def empty(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        first, number = self.num_sums % 2, self.num_sums
        self.num_sums += 1
        others = ((torch.arange(len(tensor)) + first) % 16).to(tensor.dtype)
        return tensor + others + (number in self._wrong)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("wrong", "way"), [(set(), None), ({0}, "one_shot"), ({1, 2}, "one_shot"), ({3}, "two_shot")])
def test_a_rank_with_a_wrong_sum_makes_those_that_the_others_wait_for(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, wrong: set[int], way: str | None
) -> None:
    monkeypatch.setattr(exchange_check, "_await_end", lambda way: None)
    sums = _Sums(wrong)
    fault = find_fault(cast(ChosenCollectives, sums), dtype, _CPU)
    assert fault is None if way is None else (fault or "").startswith(f"{way} has added")
    assert sums.num_sums == 4
