"""The share of one process in x A B of all rows: some rows of A, and some columns of B, from pages in host memory.

Weights are divided, not the rows of x. Each weight is read and packed for a product by one process alone, so all of the
work is divided by the number of processes; x alone is read by each. Shares of v = x A, which is small, are put together
in shared memory between the two products.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from punica_serve.base_model.lora_layout import LORA_PAGE_RANKS
from punica_serve.engine.cpu_assist.exchange_memory import ExchangeShape, GroupWeights

#: Columns of B that stay together: those of a tile of AMX.
_COLUMN_UNIT = 16


@dataclass(frozen=True, slots=True)
class LayerShare:
    """A share of one layer's group. Either part may be empty: an adapter may have fewer ranks than there are processes.

    A copy, which the core that computes has in its cache.
    """

    #: Rows of A, counted through all slices: slice * ranks + rank.
    ranks: range
    #: [own ranks, in]
    a: Tensor
    #: Columns of the group's output.
    columns: range
    #: [ranks, own columns]
    b: Tensor
    out_offsets: tuple[int, ...]

    def shrink(self, v: Tensor, x: Tensor) -> None:
        """Writes its share of v [slices * ranks, rows]: A x, transposed, so that each process writes lines of its own.

        ``x``: [rows, in].
        """
        v[self.ranks.start : self.ranks.stop] = (x @ self.a.T).T

    def expand(self, delta: Tensor, v: Tensor) -> None:
        """Writes its columns of delta [rows, out] from all of v."""
        first, num_ranks = self.columns.start, len(self.b)
        for number, own in self._pieces():
            b = self.b[:, own.start - first : own.stop - first]
            torch.mm(v[number * num_ranks : (number + 1) * num_ranks].T, b, out=delta[:, own.start : own.stop])

    def _pieces(self) -> Iterator[tuple[int, range]]:
        """Its columns by slice."""
        for number, (left, right) in enumerate(pairwise(self.out_offsets)):
            own = range(max(left, self.columns.start), min(right, self.columns.stop))
            if own:
                yield number, own


class HostShare:
    """A share of an adapter in the memory of the host cache."""

    def __init__(
        self, host: Tensor, shape: ExchangeShape, weights: tuple[GroupWeights, ...], position: int = 0, count: int = 1
    ) -> None:
        """``host``: uint8, all of the host cache's memory. ``position`` among the ``count`` processes of a job."""
        self._shape = shape
        self._groups = [
            _GroupShare(host, shape, number, own, position, count) if own.num_pages else None
            for number, own in enumerate(weights)
        ]

    def fetch(self, layer: int, group: int) -> LayerShare:
        """Copies its share of one layer. The adapter must have the group."""
        own = self._groups[group]
        assert own is not None
        return own.fetch(layer)


class _GroupShare:
    """A share of one group, all layers."""

    def __init__(
        self, host: Tensor, shape: ExchangeShape, group: int, weights: GroupWeights, position: int, count: int
    ) -> None:
        self._a = _pages(host, shape.a_shape(group, weights.num_pages), weights.a_start, shape.torch_dtype)
        self._b = _pages(host, shape.b_shape(group, weights.num_pages), weights.b_start, shape.torch_dtype)
        own, num_ranks = shape.groups[group], weights.num_pages * LORA_PAGE_RANKS
        self._out_offsets = own.out_offsets
        self._ranks = _share(own.num_slices * num_ranks, position, count)
        self._columns = _share(own.out_features, position, count, _COLUMN_UNIT)
        flat = torch.arange(self._ranks.start, self._ranks.stop)
        number, rank = flat // num_ranks, flat % num_ranks
        page_rows = rank // LORA_PAGE_RANKS * shape.num_layers * own.num_slices + number
        #: Where the rows lie in the first layer's A, if A is a matrix of all pages and layers.
        self._a_rows = page_rows * LORA_PAGE_RANKS + rank % LORA_PAGE_RANKS
        self._layer_rows = own.num_slices * LORA_PAGE_RANKS

    def fetch(self, layer: int) -> LayerShare:
        a = self._a.flatten(0, 3).index_select(0, self._a_rows + layer * self._layer_rows)
        b = self._b[:, layer, :, self._columns.start : self._columns.stop].flatten(0, 1)
        return LayerShare(self._ranks, a, self._columns, b.contiguous(), self._out_offsets)


def _share(total: int, position: int, count: int, unit: int = 1) -> range:
    """As even as can be, in whole units but at the end."""
    num_units = -(-total // unit)
    bounds = (min(total, number * num_units // count * unit) for number in (position, position + 1))
    return range(*bounds)


def _pages(host: Tensor, shape: tuple[int, ...], start: int, dtype: torch.dtype) -> Tensor:
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    return host[start : start + num_bytes].view(dtype).view(shape)
