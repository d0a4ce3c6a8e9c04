"""The exchanges between the ranks of a tensor-parallel group, as the model and the sampler use them."""

from typing import Final, Protocol

import torch
from torch import Tensor

from punica_serve.base_model.rank import SINGLE, Rank


class Collectives(Protocol):
    """One rank's end of a group. All ranks call the same operations in the same order, with equal shapes."""

    rank: Rank

    def empty(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for the next tensor that all ranks add up, which need not be copied for it.

        It, and the sum that ``all_reduce`` returns for it, last until the next call of either.
        """
        ...

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks in a fixed order, the same bits on each. ``tensor`` may be overwritten.

        tensor: contiguous, any shape and floating dtype.
        """
        ...

    def all_gather(self, tensor: Tensor) -> Tensor:
        """[size, *shape]: the tensors of all ranks, by rank. tensor: contiguous, any shape and dtype."""
        ...


class SingleRank:
    """A model on one device, which has nobody to exchange with."""

    rank = SINGLE

    def empty(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor

    def all_gather(self, tensor: Tensor) -> Tensor:
        return tensor[None]


SINGLE_RANK: Final[Collectives] = SingleRank()
