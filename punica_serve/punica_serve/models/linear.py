"""Linear projections of a model, with the LoRA of each row, and the rule for programmatic dependent launches (PDL).

A kernel launched with PDL starts while its predecessor on the stream ends. Every operator of a layer reads the output
of a ``Linear`` or feeds one, so the rule is written here, once: the dense product is always such a launch, and the
operator after it is one unless the stream has waited for another stream in between (``Projected.pdl``). The rest of
the model passes the answer on and never decides.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor

from punica_kernels.linear import linear
from punica_kernels.low_rank import LowRankDelta
from punica_serve.base_model.model_spec import ProjectionGroup
from punica_serve.protocol import LoraGroup


class Projected(NamedTuple):
    """The output of a Linear as a sum that is not added up yet: the operator that reads it adds it on the way."""

    #: [rows, out], or float32 split-K partial sums [splits, rows, out].
    y: Tensor
    #: LoRA's part, [rows, out], still to be added; None if there is none.
    delta: Tensor | None
    #: LoRA's part as its factors instead, for an operator that multiplies them itself.
    low_rank: LowRankDelta | None = None

    @property
    def pdl(self) -> bool:
        """Whether the operator that reads this may be a programmatic dependent launch.

        A delta comes from another stream, which this one has waited for: then there is no kernel to depend on.
        """
        return self.delta is None and self.low_rank is None


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
    """The stacked projections of one group in one layer: the base weight, and the place of its LoRA.

    A rank's outputs of o and down are partial sums, of the base and of LoRA: the norm that reads them exchanges both.
    """

    __slots__ = ("_group", "_layer", "_split_k", "_weight")

    def __init__(self, layer: int, group: ProjectionGroup, weight: Tensor) -> None:
        """``weight``: [out_features, in_features] of the group."""
        self._layer = layer
        self._group = group.name
        self._split_k = group.split_k
        self._weight = weight

    def __call__(self, x: Tensor, lora: LoraBatch) -> Projected:
        """x: [rows, in]."""
        return lora.apply(self._layer, self._group, x, self._base)

    def _base(self, x: Tensor) -> Tensor:
        return linear(x, self._weight, split_k=self._split_k, pdl=True)


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
