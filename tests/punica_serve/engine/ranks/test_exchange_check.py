"""The sums by which a group confirms its exchanges. Exchanges of GPUs are played, and so is the wait for them."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar, cast

import pytest
import torch
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from punica_kernels.block_end import BlockEnd
from punica_serve.base_model.rank import Rank
from punica_serve.engine.ranks import exchange_check
from punica_serve.engine.ranks.chosen_collectives import ChosenCollectives
from punica_serve.engine.ranks.exchange_check import check_exchanges, find_fault, find_norm_fault
from punica_serve.engine.ranks.exchange_choice import ExchangeChoice
from punica_serve.engine.ranks.start_votes import StartVotes
from punica_serve.errors import ConfigError
from punica_serve.models.collectives import Collectives
from thread_ranks import run_ranks

_CPU = torch.device("cpu")
_WIDTH = 24


class _Sums:
    """Rank 1 of two, which gets right sums of known values, but for those whose numbers it is given."""

    rank = Rank(1, 2)
    choice = ExchangeChoice(((64, "one_shot"), (128, "nccl"), (256, "two_shot")))
    layer_exchanges: ClassVar[dict[str, Any]] = {}

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
    monkeypatch.setattr(exchange_check, "_await_end", lambda way, fault_of_others: None)
    sums = _Sums(wrong)
    fault = find_fault(cast(ChosenCollectives, sums), dtype, _CPU, lambda: None)
    assert fault is None if way is None else (fault or "").startswith(f"{way} has added")
    assert sums.num_sums == 4


class _Norms:
    """A rank's exchanges of layers, some of which it gets wrong."""

    def __init__(self, collectives: Collectives, wrong: int | None, by: int) -> None:
        self.rank = collectives.rank
        self.nums_rows: list[int] = []
        self._collectives = collectives
        self._wrong = wrong
        self._by = by

    def takes(self, end: BlockEnd) -> bool:
        return True

    def __call__(self, end: BlockEnd, *, pdl: bool) -> None:
        self._collectives.add_rms_norm(end, pdl=pdl)
        if len(self.nums_rows) == self._wrong:
            (end.out if self._by else end.residual)[-1, -1] += self._by or 1
        self.nums_rows.append(len(end.residual))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("wrong", "by"), [(None, 0), (0, 0), (1, 0), (3, 0), (3, 1)])
def test_so_does_one_with_a_wrong_norm(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, wrong: int | None, by: int
) -> None:
    monkeypatch.setattr(exchange_check, "_await_end", lambda way, fault_of_others: None)

    def find(collectives: Collectives) -> tuple[str | None, list[int]]:
        norms = _Norms(collectives, wrong if collectives.rank.index == 1 else None, by)
        fault = find_norm_fault(norms, "a kernel", 1000, norms.rank, _WIDTH, dtype, _CPU, lambda: None)
        return fault, norms.nums_rows

    (first, first_rows), (second, second_rows) = run_ranks(2, find)
    most = 1000 // (_WIDTH * dtype.itemsize)
    assert first_rows == second_rows == [most, 1, most, most]
    assert first is None
    assert second is None if wrong is None else (second or "").startswith("a kernel has added")


class _Broken(_Sums):
    """Sums that a rank can't begin."""

    def all_reduce(self, tensor: Tensor) -> Tensor:
        raise RuntimeError("no kernel image\nis available")


class _Event:
    """The end of a sum that waits for ever."""

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return False


def _check_two(first: _Sums, second: _Sums) -> tuple["Future[str | None]", "Future[str | None]"]:
    """The words of the start on both ranks."""
    store = HashStore()
    with ThreadPoolExecutor(2) as threads:
        futures = [
            threads.submit(
                check_exchanges,
                cast(ChosenCollectives, sums),
                _WIDTH,
                torch.bfloat16,
                _CPU,
                StartVotes(store, Rank(index, 2), timeout_s=1.0),
            )
            for index, sums in enumerate((first, second))
        ]
    return futures[0], futures[1]


def test_the_ranks_that_wait_for_one_that_fails_are_told_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    waiting, failed = _check_two(_Sums(set()), _Broken(set()))
    with pytest.raises(ConfigError, match=r"^rank 1 can't add up over ranks: no kernel image; set `engine\.exchange`"):
        waiting.result()
    with pytest.raises(ConfigError, match=r"^rank 0 could not add up over ranks within 1 s \(rank 1 can't"):
        failed.result()


def test_a_way_that_fails_on_all_ranks_is_told_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    for future in _check_two(_Broken(set()), _Broken(set())):
        assert future.result() == "rank 0 can't add up over ranks: no kernel image"
