"""All that a layer does for an exchange, in one call."""

from typing import Protocol

from punica_kernels.block_end import BlockEnd


class LayerExchange(Protocol):
    """One rank's end. All ranks of a group must call it, with equal shapes."""

    def takes(self, end: BlockEnd) -> bool:
        """Whether it can exchange such rows and norm them: the same answer on all ranks."""

    def __call__(self, end: BlockEnd, *, pdl: bool) -> None:
        """See ``Collectives.add_rms_norm``, of what it ``takes``."""
