"""Ranks as threads of one process, which exchange tensors by memory: a group without processes."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import torch
from torch import Tensor

from punica_serve.base_model.rank import Rank
from punica_serve.models.collectives import Collectives

_DEADLINE_S = 60.0

Result = TypeVar("Result")


class ThreadCollectives(Collectives):
    """One rank's end."""

    def __init__(self, rank: Rank, barrier: Barrier, slots: list[Tensor]) -> None:
        self.rank = rank
        self._barrier = barrier
        self._slots = slots

    def empty(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor.copy_(self.all_gather(tensor).sum(0))

    def all_gather(self, tensor: Tensor) -> Tensor:
        self._slots[self.rank.index] = tensor
        self._meet(tensor)
        assert len({(each.shape, each.dtype) for each in self._slots}) == 1
        gathered = torch.stack(self._slots)
        self._meet(tensor)
        return gathered

    def all_to_all(self, tensor: Tensor) -> Tensor:
        assert len(tensor) == self.rank.size
        return self.all_gather(tensor)[:, self.rank.index].contiguous()

    def abort(self) -> None:
        """Ends the exchanges of all ranks, with errors."""
        self._barrier.abort()

    def _meet(self, tensor: Tensor) -> None:
        """Waits for the other threads, and on a GPU for what they have launched."""
        if tensor.is_cuda:
            torch.cuda.synchronize(tensor.device)
        self._barrier.wait()


def thread_collectives(size: int) -> list[ThreadCollectives]:
    """One for each rank."""
    barrier = Barrier(size, timeout=_DEADLINE_S)
    slots = [torch.empty(0)] * size
    return [ThreadCollectives(Rank(index, size), barrier, slots) for index in range(size)]


def run_ranks(size: int, run: Callable[[Collectives], Result]) -> list[Result]:
    """The results of ``run`` on each rank."""
    ranks = thread_collectives(size)

    def run_one(index: int) -> Result:
        try:
            return run(ranks[index])
        except BaseException:
            ranks[index].abort()
            raise

    with ThreadPoolExecutor(size) as threads:
        futures = [threads.submit(run_one, index) for index in range(size)]
        # The first error is the cause of the others, which find the barrier broken.
        errors = [error for future in futures if (error := future.exception())]
        for error in errors:
            if "Barrier" not in repr(error):
                raise error
        return [future.result() for future in futures]
