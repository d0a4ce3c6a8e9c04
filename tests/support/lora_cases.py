"""Random adapters in pages, what their LoRA adds, and calls of SGMV's kernels over a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from punica_kernels.gpu.sgmv import add_lora, expand, shrink, workspace_numel
from punica_kernels.lora_table import LoraTable, LoraTableShape

#: Kernels run on a GPU, or in Triton's interpreter where there is none.
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
_PAGE_RANKS = 8
_CPU = torch.device("cpu")
#: Rows of the table past the last segment.
_SPARE_ROWS = 3


class ScatteredAdapters(NamedTuple):
    """Pages of each adapter, and one layer of the pools that they are in; pages that nobody owns are NaN."""

    pages: list[list[int]]
    #: [pages, slices, 8, h_in] and [pages, 8, h_out], strided.
    a_pages: Tensor
    b_pages: Tensor


def scatter(
    ranks: Sequence[int], *, dtype: torch.dtype, h_in: int, slice_widths: Sequence[int], device: torch.device = _CPU
) -> ScatteredAdapters:
    """Adapters of ``ranks`` (0 = no LoRA) with pages scattered over one layer of pools of two layers."""
    pages_needed = [-(-rank // _PAGE_RANKS) for rank in ranks]
    num_pages = sum(pages_needed) + 3
    free = torch.randperm(num_pages).tolist()
    pages = [[free.pop() for _ in range(needed)] for needed in pages_needed]
    a_pages = torch.randn(num_pages, 2, len(slice_widths), _PAGE_RANKS, h_in, device=device).to(dtype)[:, 1]
    b_pages = torch.randn(num_pages, 2, _PAGE_RANKS, sum(slice_widths), device=device).to(dtype)[:, 1]
    # LoRA's part is then as large as y.
    b_pages /= max(1, *ranks) ** 0.5 * h_in**0.5
    for rank, owned in zip(ranks, pages, strict=True):
        if rank % _PAGE_RANKS:
            a_pages[owned[-1], :, rank % _PAGE_RANKS :] = 0
            b_pages[owned[-1], rank % _PAGE_RANKS :] = 0
    a_pages[free], b_pages[free] = torch.nan, torch.nan
    return ScatteredAdapters(pages, a_pages, b_pages)


class LoraCase(Protocol):
    """One call: x of the rows of segments, each with an adapter of its own."""

    indptr: list[int]
    pages: list[list[int]]
    a_pages: Tensor
    b_pages: Tensor
    x: Tensor
    out_offsets: tuple[int, ...]


def lora_delta(case: LoraCase) -> Tensor:
    """LoRA's part: the maths in float64, a loop over segments, pages and slices."""
    delta = case.x.new_zeros(len(case.x), case.out_offsets[-1], dtype=torch.float64)
    for (start, end), pages in zip(pairwise(case.indptr), case.pages, strict=True):
        for page in pages:
            for s, (left, right) in enumerate(pairwise(case.out_offsets)):
                v = case.x[start:end].double() @ case.a_pages[page, s].double().T
                delta[start:end, left:right] += v @ case.b_pages[page, :, left:right].double()
    return delta


@dataclass
class RandomCase:
    """A ``LoraCase``, and y of rows to add to, or to be overwritten."""

    indptr: list[int]
    pages: list[list[int]]
    a_pages: Tensor
    b_pages: Tensor
    out_offsets: tuple[int, ...]
    x: Tensor
    y: Tensor

    @classmethod
    def of(
        cls,
        segment_rows: Sequence[int],
        ranks: Sequence[int],
        *,
        dtype: torch.dtype = torch.float32,
        h_in: int = 40,
        slice_widths: Sequence[int] = (24,),
        device: torch.device = _CPU,
        num_spare_rows: int = 0,
    ) -> "RandomCase":
        """So many rows of each segment, and the rank of its adapter: adapters of 0 ranks are none."""
        adapters = scatter(ranks, dtype=dtype, h_in=h_in, slice_widths=slice_widths, device=device)
        indptr, out_offsets = (list(accumulate(counts, initial=0)) for counts in (segment_rows, slice_widths))
        num_rows, widths = indptr[-1] + num_spare_rows, (h_in, out_offsets[-1])
        x, y = (torch.randn(num_rows, width, device=device).to(dtype) for width in widths)
        return cls(indptr, *adapters, tuple(out_offsets), x, y)


@dataclass
class TableCase(RandomCase):
    """With a table, and v poisoned."""

    table: LoraTable
    v: Tensor

    def added(self) -> Tensor:
        y = self.y.clone()
        add_lora(y, self.x, self.a_pages, self.b_pages, self.out_offsets, self.table, self.v)
        return y

    def delta(self, *, pdl: bool = False) -> Tensor:
        delta = torch.full_like(self.y, torch.nan)
        shrink(self.v, self.x, self.a_pages, self.table, pdl=pdl)
        expand(delta, self.v, self.b_pages, self.out_offsets, self.table, accumulate=False, pdl=pdl)
        return delta

    def added_again(self) -> Tensor:
        """As ``added``, with what the last shrink has left in v."""
        y = self.y.clone()
        expand(y, self.v, self.b_pages, self.out_offsets, self.table, accumulate=True)
        return y

    def expected_delta(self) -> Tensor:
        return lora_delta(self)


def make_case(segment_rows: Sequence[int], ranks: Sequence[int], **options: Any) -> TableCase:
    """As ``RandomCase.of``, with rows of the table past the last segment."""
    case = RandomCase.of(segment_rows, ranks, device=DEVICE, num_spare_rows=_SPARE_ROWS, **options)
    shape = LoraTableShape(len(case.x), len(ranks) + 1, max(2, *map(len, case.pages)))
    words = np.empty(shape.num_words, np.int32)
    shape.fill(words, case.indptr, case.pages)
    table = LoraTable(torch.from_numpy(words).to(DEVICE), shape)
    v = torch.full((workspace_numel(shape, len(case.out_offsets) - 1),), torch.nan, device=DEVICE)
    return TableCase(**vars(case), table=table, v=v)
