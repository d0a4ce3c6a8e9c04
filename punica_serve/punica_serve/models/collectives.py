"""The exchanges between the ranks of a tensor-parallel group, as the model and the sampler use them."""

from abc import ABC, abstractmethod
from typing import Final

import torch
from torch import Tensor

from punica_kernels.block_end import BlockEnd
from punica_kernels.norm import add_rms_norm
from punica_kernels.partial_sums import sum_parts
from punica_serve.base_model.rank import SINGLE, Rank


class Collectives(ABC):
    """One rank's end of a group. All ranks call the same operations in the same order, with equal shapes."""

    rank: Rank

    @abstractmethod
    def empty(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for the next tensor that all ranks add up, which need not be copied for it.

        It, and the sum that ``all_reduce`` returns for it, last until the next call of either.
        """

    @abstractmethod
    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks in a fixed order, the same bits on each. ``tensor`` may be overwritten.

        tensor: contiguous, any shape and floating dtype.
        """

    @abstractmethod
    def all_gather(self, tensor: Tensor) -> Tensor:
        """[size, *shape]: the tensors of all ranks, by rank. tensor: contiguous, any shape and dtype."""

    @abstractmethod
    def all_to_all(self, tensor: Tensor) -> Tensor:
        """[size, *shape], by rank: what each rank has for this one.

        tensor: [size, *shape], what this rank has for each; contiguous, any shape and dtype.
        """

    def add_rms_norm(self, end: BlockEnd, *, pdl: bool) -> None:
        """Adds the sum of x + delta over all ranks to the residual and norms it.

        Each rank's x + delta is added in float32 and rounded once, to residual's dtype. ``pdl``: of the first launch.
        """
        part = self.empty(end.residual.shape, end.residual.dtype, end.residual.device)
        sum_parts(part, end.x, end.delta, pdl=pdl)
        # An exchange is no kernel of ours, so there is none to depend on.
        add_rms_norm(end._replace(x=self.all_reduce(part), delta=None), pdl=False)


class SingleRank(Collectives):
    """A model on one device, which has nobody to exchange with."""

    rank = SINGLE

    def empty(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor

    def all_gather(self, tensor: Tensor) -> Tensor:
        return tensor[None]

    def all_to_all(self, tensor: Tensor) -> Tensor:
        return tensor

    def add_rms_norm(self, end: BlockEnd, *, pdl: bool) -> None:
        add_rms_norm(end, pdl=pdl)


SINGLE_RANK: Final[Collectives] = SingleRank()
