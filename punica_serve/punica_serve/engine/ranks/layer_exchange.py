"""All that a layer does for an exchange, in one call."""

from typing import Protocol

from torch import Tensor


class LayerExchange(Protocol):
    """One rank's end. All ranks of a group must call it, with equal shapes."""

    def takes(self, residual: Tensor, weight: Tensor, added_weight: Tensor | None) -> bool:
        """Whether it can exchange such rows [num_rows, width] and norm them: the same answer on all ranks."""

    def __call__(
        self,
        out: Tensor,
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        eps: float,
        delta: Tensor | None,
        added_weight: Tensor | None,
        *,
        pdl: bool,
    ) -> None:
        """See ``Collectives.add_rms_norm``, of what it ``takes``."""
