"""Linear projections of a model, with the LoRA of each row, and the rule for programmatic dependent launches (PDL).

A kernel launched with PDL starts while its predecessor on the stream ends. Every operator of a layer reads the output
of a ``Linear`` or feeds one, so the rule is written here, once: the dense product is always such a launch, and the
operator after it is one unless the stream has waited for another stream in between (``Projected.pdl``). The rest of
the model passes the answer on and never decides.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from punica_kernels.linear import linear
from punica_kernels.partial_sums import sum_parts
from punica_serve.base_model.model_spec import ProjectionGroup
from punica_serve.models.collectives import SINGLE_RANK, Collectives
from punica_serve.protocol import LoraGroup


class Projected(NamedTuple):
    """The output of a Linear as a sum that is not added up yet: the operator that reads it adds it on the way."""

    #: [rows, out], or float32 split-K partial sums [splits, rows, out].
    y: Tensor
    #: LoRA's part, [rows, out], still to be added; None if there is none.
    delta: Tensor | None
    #: Whether it is a sum over ranks.
    is_exchanged: bool = False

    @property
    def pdl(self) -> bool:
        """Whether the operator that reads this may be a programmatic dependent launch.

        A delta comes from another stream, which this one has waited for, and an exchange is no kernel of ours: then
        there is no kernel to depend on.
        """
        return self.delta is None and not self.is_exchanged


class LoraBatch(Protocol):
    """The LoRA of a step, planned beforehand."""

    def apply(self, layer: int, group: LoraGroup, x: Tensor, base: Callable[[Tensor], Tensor]) -> Projected:
        """Runs ``base(x)`` and the LoRA of each row on x [rows, in].

        LoRA may run beside the base on another stream; the current stream has waited for it on return.
        """
        ...

    def add_to_embedding(self, token_ids: Tensor, embedded: Tensor) -> None:
        """Adds the LoRA of each row's embedding to ``embedded`` [rows, hidden] in place."""
        ...

    def add_to_logits(self, hidden: Tensor, logits: Tensor) -> None:
        """Adds the LoRA of the head to ``logits`` [rows, vocab] in place, for the last rows of the step."""
        ...


class Linear:
    """The stacked projections of one group in one layer: the base weight, the place of its LoRA, and their exchange.

    A rank's outputs of o and down are partial sums, of the base and of LoRA: one exchange adds both up.
    """

    __slots__ = ("_collectives", "_group", "_layer", "_split_k", "_weight")

    def __init__(
        self, layer: int, group: ProjectionGroup, weight: Tensor, collectives: Collectives = SINGLE_RANK
    ) -> None:
        """``weight``: [out_features, in_features] of the group."""
        self._layer = layer
        self._group = group.name
        self._split_k = group.split_k
        self._weight = weight
        self._collectives = collectives if group.row_parallel and collectives.rank.size > 1 else None

    def __call__(self, x: Tensor, lora: LoraBatch) -> Projected:
        """x: [rows, in]."""
        projected = lora.apply(self._layer, self._group, x, self._base)
        return projected if self._collectives is None else _sum_over_ranks(projected, x.dtype, self._collectives)

    def _base(self, x: Tensor) -> Tensor:
        return linear(x, self._weight, split_k=self._split_k, pdl=True)


def _sum_over_ranks(part: Projected, dtype: torch.dtype, collectives: Collectives) -> Projected:
    """Adds up the parts of this rank, rounds once, and adds up all ranks. The next operator reads the sum at once."""
    y = collectives.empty(part.y.shape[-2:], dtype, part.y.device)
    sum_parts(y, part.y, part.delta, pdl=part.pdl)
    return Projected(collectives.all_reduce(y), None, is_exchanged=True)


class OutputHead:
    """The projection to the vocabulary, or to a rank's share of it."""

    __slots__ = ("_soft_cap", "_weight")

    def __init__(self, weight: Tensor, soft_cap: float | None = None) -> None:
        """``weight``: [vocab, hidden]. ``soft_cap``: logits x become soft_cap * tanh(x / soft_cap)."""
        self._weight = weight
        self._soft_cap = soft_cap

    def __call__(self, hidden: Tensor, lora: LoraBatch) -> Tensor:
        """[rows, hidden] -> [rows, vocab]."""
        logits = linear(hidden, self._weight, pdl=True)
        lora.add_to_logits(hidden, logits)
        return logits if self._soft_cap is None else logits.div_(self._soft_cap).tanh_().mul_(self._soft_cap)
