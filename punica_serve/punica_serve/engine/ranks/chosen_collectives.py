"""Exchanges between GPUs by the way that was chosen for the size of each."""

import torch
from torch import Tensor

from punica_kernels.block_end import BlockEnd
from punica_serve.engine.ranks.exchange_choice import ExchangeChoice, LayerWay
from punica_serve.engine.ranks.flashinfer_norm import FlashInferNorm
from punica_serve.engine.ranks.fused_norm import FusedNorm
from punica_serve.engine.ranks.layer_exchange import LayerExchange
from punica_serve.engine.ranks.symmetric_sums import SymmetricSums
from punica_serve.engine.ranks.torch_collectives import TorchCollectives
from punica_serve.models.collectives import Collectives


class ChosenCollectives(Collectives):
    """``all_reduce`` and ``add_rms_norm`` by the way that was chosen; all else as ``library`` does it."""

    def __init__(
        self,
        library: TorchCollectives,
        choice: ExchangeChoice,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
        flashinfer: FlashInferNorm | None = None,
    ) -> None:
        """All ranks must, with one choice. ``width``, ``dtype``: of the residual.

        ``flashinfer``: for the sizes that are FlashInfer's. Raises RuntimeError if their GPUs can't map each other's
        memory.
        """
        self.rank = library.rank
        self.choice = choice
        self._library = library
        self._sums = SymmetricSums(library, choice.max_bytes, device) if choice.max_bytes else None
        #: Those that do all that a layer does for an exchange.
        self.layer_exchanges: dict[LayerWay, LayerExchange] = {}
        if fused_bytes := choice.max_layer_bytes("fused"):
            self.layer_exchanges["fused"] = FusedNorm(library, fused_bytes, width, dtype, device)
        if flashinfer is not None:
            self.layer_exchanges["flashinfer"] = flashinfer

    def empty(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
        """See ``Collectives.empty``."""
        if self._sums is not None and self._sums.fits(shape.numel() * dtype.itemsize, dtype):
            return self._sums.memory(shape, dtype)
        return self._library.empty(shape, dtype, device)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """See ``Collectives.all_reduce``."""
        way = self.choice.way(tensor.nbytes)
        if self._sums is None or way == "nccl" or not self._sums.fits(tensor.nbytes, tensor.dtype):
            return self._library.all_reduce(tensor)
        if self._sums.holds(tensor):
            return self._sums.add_up(tensor, way)
        part = self._sums.memory(tensor.shape, tensor.dtype).copy_(tensor)
        return tensor.copy_(self._sums.add_up(part, way))

    def all_gather(self, tensor: Tensor) -> Tensor:
        """See ``Collectives.all_gather``."""
        return self._library.all_gather(tensor)

    def all_to_all(self, tensor: Tensor) -> Tensor:
        """See ``Collectives.all_to_all``."""
        return self._library.all_to_all(tensor)

    def add_rms_norm(self, end: BlockEnd, *, pdl: bool) -> None:
        """See ``Collectives.add_rms_norm``."""
        exchange = self.layer_exchanges.get(self.choice.layer_way(end.residual.nbytes))
        if exchange is not None and exchange.takes(end):
            exchange(end, pdl=pdl)
        else:
            super().add_rms_norm(end, pdl=pdl)
