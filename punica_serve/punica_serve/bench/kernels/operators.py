"""The SGMV operators on one batch: prepared once, as in a step, then called layer by layer."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from punica_kernels.lora_table import LoraTable, LoraTableShape
from punica_kernels.segments import SegmentIndex
from punica_kernels.sgmv import add_lora, sgmv_expand, sgmv_shrink
from punica_serve.base_model.lora_layout import LORA_PAGE_RANKS, pages_of_rank
from punica_serve.bench.kernels.accuracy import relative_error
from punica_serve.bench.kernels.case import Case
from punica_serve.bench.kernels.weights import PagedWeights

#: Runs an operator on one layer.
LayerCall = Callable[[int], object]

#: More rows than this belong to a prefill.
_MAX_DECODES = 64

#: Highest relative error of y against float64; rounding y once accounts for half of it.
ERROR_LIMITS = {torch.bfloat16: 5e-3, torch.float16: 7e-4, torch.float32: 1e-5}


class Rows:
    """x and y of one batch. Each call adds to y."""

    def __init__(self, num_rows: int, h_in: int, h_out: int, dtype: torch.dtype, device: torch.device) -> None:
        generator = torch.Generator(device).manual_seed(num_rows)
        self.x = torch.randn(num_rows, h_in, dtype=dtype, device=device, generator=generator)
        self.y = torch.empty(num_rows, h_out, dtype=dtype, device=device)
        self.renew()

    def renew(self) -> None:
        """Resets y to small values: errors would not show in a large one."""
        self.y.normal_()


class Sgmv:
    """Shrink, expand and their pair on one batch.

    On a GPU each launch of ``pair`` starts while the one before it ends (programmatic dependent launch), also across
    pairs; in ``isolated_pair`` only an expand may, after its shrink. The table has room for ranks to ``max_rank``, by
    default the batch's own.
    """

    def __init__(self, weights: PagedWeights, case: Case, rows: Rows, *, max_rank: int | None = None) -> None:
        pages = weights.pages(case)
        offsets = (0, weights.h_out)
        if weights.device.type == "cuda":
            max_pages = pages_of_rank(max_rank or max(case.ranks))
            self.shrink, self.expand, self.pair = _gpu_calls(weights, case.indptr, pages, max_pages, offsets, rows)
        else:
            self.shrink, self.expand, self.pair = _cpu_calls(weights, case.indptr, pages, offsets, rows)

    def isolated_pair(self, layer: int) -> None:
        """The pair, started after the previous launch has ended."""
        self.shrink(layer)
        self.expand(layer)


def calls(call: LayerCall, num_layers: int) -> list[Callable[[], object]]:
    """The call for every layer."""
    return [partial(call, layer) for layer in range(num_layers)]


def reference(weights: PagedWeights, case: Case, rows: Rows, layer: int) -> Tensor:
    """y + x A B in float64."""
    total = rows.y.double()
    for start, end, (a, b) in zip(case.indptr, case.indptr[1:], weights.dense(case, layer), strict=False):
        total[start:end] += rows.x[start:end].double() @ a.T @ b
    return total


def checked(call: LayerCall, weights: PagedWeights, case: Case, rows: Rows, name: str) -> float:
    """The relative error after one call on the last layer with a new y. Raises ArithmeticError if it is too large."""
    layer = weights.num_layers - 1
    rows.renew()
    expected = reference(weights, case, rows, layer)
    call(layer)
    error = relative_error(rows.y, expected)
    if error > ERROR_LIMITS[weights.dtype]:
        raise ArithmeticError(f"{name} on {case.name}, {case.num_rows} rows, rank {case.rank_text}: error {error:.2e}")
    return error


def _max_segments(num_rows: int, num_segments: int) -> int:
    """The capacity in segments: a prefill needs one more, for the rows that pad it."""
    return num_rows if num_rows <= _MAX_DECODES else num_segments + 1


def _cpu_calls(
    weights: PagedWeights, indptr: Sequence[int], pages: list[list[int]], offsets: tuple[int, int], rows: Rows
) -> tuple[LayerCall, LayerCall, LayerCall]:
    index = SegmentIndex.build(indptr, pages)
    v = torch.full((indptr[-1], 1, index.max_pages * LORA_PAGE_RANKS), math.nan)

    def shrink(layer: int) -> None:
        sgmv_shrink(v, rows.x, weights.layer(layer)[0], index)

    def expand(layer: int) -> None:
        sgmv_expand(rows.y, v, weights.layer(layer)[1], offsets, index)

    def pair(layer: int) -> None:
        add_lora(rows.y, rows.x, *weights.layer(layer), offsets, index, v)

    return shrink, expand, pair


def _gpu_calls(
    weights: PagedWeights,
    indptr: Sequence[int],
    pages: list[list[int]],
    max_pages: int,
    offsets: tuple[int, int],
    rows: Rows,
) -> tuple[LayerCall, LayerCall, LayerCall]:
    from punica_kernels.gpu import sgmv

    # As in the engine's graphs, all decodes may use different adapters, whether or not this batch's do. Those graphs
    # also allow the highest rank; so does this table if asked to.
    num_rows = indptr[-1]
    shape = LoraTableShape(num_rows, _max_segments(num_rows, len(pages)), max_pages)
    words = np.empty(shape.num_words, np.int32)
    shape.fill(words, indptr, pages)
    table = LoraTable(torch.from_numpy(words).to(weights.device), shape)
    v = torch.full((sgmv.workspace_numel(shape, num_slices=1),), math.nan, device=weights.device)

    def shrink(layer: int) -> None:
        sgmv.shrink(v, rows.x, weights.layer(layer)[0], table)

    def expand(layer: int) -> None:
        sgmv.expand(rows.y, v, weights.layer(layer)[1], offsets, table, accumulate=True)

    def pair(layer: int) -> None:
        sgmv.add_lora(rows.y, rows.x, *weights.layer(layer), offsets, table, v, pdl=True)

    return shrink, expand, pair
