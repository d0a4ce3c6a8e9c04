"""SGMV's competitors in plain torch, on contiguous weights (Punica, section 7.1).

Loop runs one product after another for each adapter. Gather-BMM copies the weights of every row's adapter into one
tensor, then multiplies in a batch. Gather and BMM are its halves; BMM alone is its cost if the copies were free.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from punica_serve.bench.kernels.case import Case
from punica_serve.bench.kernels.operators import LayerCall, Rows
from punica_serve.bench.kernels.weights import PagedWeights


class TorchOperators:
    """The operators on one batch whose adapters have equal ranks. The weights are copied from the pages, adapter by
    adapter.
    """

    def __init__(self, weights: PagedWeights, case: Case, rows: Rows) -> None:
        layers = [_stacked(weights, case, layer) for layer in range(weights.num_layers)]
        #: [layers, adapters, h_in, rank] and [layers, adapters, rank, h_out].
        self._a, self._b = (torch.stack(tensors) for tensors in zip(*layers, strict=True))
        owners = [adapter for adapter, length in enumerate(case.lengths) for _ in range(length)]
        self._owners = torch.tensor(owners, device=weights.device)
        self._case, self._rows = case, rows

    @property
    def operators(self) -> dict[str, Callable[[], LayerCall]]:
        """Name in tables -> a function that makes the operator."""
        return {
            "loop": lambda: self.loop,
            "gather-bmm": lambda: self.gather_bmm,
            "gather": lambda: self.gather,
            "bmm": self.make_bmm,
        }

    def loop(self, layer: int) -> None:
        """A pair of products for each adapter."""
        x, y = self._rows.x, self._rows.y
        start = 0
        for adapter, length in enumerate(self._case.lengths):
            own = slice(start, start + length)
            y[own].addmm_(x[own] @ self._a[layer, adapter], self._b[layer, adapter])
            start += length

    def gather(self, layer: int) -> tuple[Tensor, Tensor]:
        """Copies of the weights, one for each row."""
        return self._a[layer].index_select(0, self._owners), self._b[layer].index_select(0, self._owners)

    def gather_bmm(self, layer: int) -> None:
        """The copies, then a batched pair of products."""
        self._multiply(*self.gather(layer))

    def make_bmm(self) -> LayerCall:
        """The products alone, on gathered weights of every layer, which no server has."""
        gathered = [self.gather(layer) for layer in range(len(self._a))]
        return lambda layer: self._multiply(*gathered[layer])

    def _multiply(self, a: Tensor, b: Tensor) -> None:
        self._rows.y[:, None].baddbmm_(torch.bmm(self._rows.x[:, None], a), b)


def _stacked(weights: PagedWeights, case: Case, layer: int) -> tuple[Tensor, Tensor]:
    pages = torch.tensor(weights.pages(case), device=weights.device)
    a_pages, b_pages = weights.layer(layer)
    return a_pages[pages].flatten(1, 3).transpose(1, 2), b_pages[pages].flatten(1, 2)
