"""The residual stream of a step, and the norms that add to it."""

import torch
from torch import Tensor

from punica_kernels.block_end import BlockEnd
from punica_kernels.norm import rms_norm
from punica_serve.models.collectives import SINGLE_RANK, Collectives
from punica_serve.models.linear import Projected


class Residual:
    """The running sum of a step's rows, and one buffer that all norms of the step write to."""

    __slots__ = ("normed", "sum")

    def __init__(self, embedded: Tensor) -> None:
        """``embedded``: [rows, hidden], changed in place from here on."""
        self.sum = embedded
        self.normed = torch.empty_like(embedded)


class RmsNorm:
    """Adds a projection to the residual, normed before where the model norms it, and norms the sum.

    It adds up the projection's parts on the way, and those of all ranks where a group divides it: one rank, one launch.
    """

    __slots__ = ("_added_weight", "_collectives", "_eps", "_weight")

    def __init__(
        self,
        weight: Tensor,
        eps: float,
        added_weight: Tensor | None = None,
        collectives: Collectives = SINGLE_RANK,
    ) -> None:
        """``weight``: [hidden]. ``added_weight``: [hidden], of the norm behind the block whose output is added."""
        self._weight = weight
        self._added_weight = added_weight
        self._eps = eps
        self._collectives = collectives

    def __call__(self, residual: Residual, added: Projected | None) -> Tensor:
        """The normed rows [rows, hidden], valid until the next norm of the step. Without ``added`` nothing is added."""
        if added is None:
            rms_norm(residual.normed, residual.sum, self._weight, self._eps)
        else:
            weights = (self._weight, self._eps, added.delta, self._added_weight)
            end = BlockEnd(residual.normed, added.y, residual.sum, *weights)
            self._collectives.add_rms_norm(end, pdl=added.pdl)
        return residual.normed
