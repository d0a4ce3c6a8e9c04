"""Sums of partial sums in Triton. `punica_kernels.partial_sums` checks the arguments and documents the shapes."""

import triton
import triton.language as tl
from torch import Tensor

from punica_kernels.gpu.pdl import await_predecessors, pdl_options, start_dependents

_BLOCK = 1024


def sum_parts(out: Tensor, parts: Tensor, delta: Tensor | None, *, pdl: bool = False) -> None:
    """out = parts + delta, in one launch."""
    num_rows, width = out.shape
    if num_rows == 0:
        return
    _sum_parts[(num_rows, triton.cdiv(width, _BLOCK))](
        out,
        parts,
        delta,
        out.stride(0),
        parts.stride(-2),
        parts.stride(0),
        delta.stride(0) if delta is not None else 0,
        width,
        BLOCK=_BLOCK,
        SPLIT_K=parts.shape[0] if parts.dim() == 3 else 1,
        num_warps=4,
        **pdl_options(out.device, wait=pdl),
    )


@triton.jit
def _sum_parts(
    out,
    parts,
    delta,
    out_stride,
    parts_stride,
    split_stride,
    delta_stride,
    width,
    BLOCK: tl.constexpr,
    SPLIT_K: tl.constexpr,
    PDL_TRIGGER: tl.constexpr,
    PDL_WAIT: tl.constexpr,
):
    """One program per block of a row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    await_predecessors(PDL_WAIT)
    start_dependents(PDL_TRIGGER)
    values = load_sum(parts, delta, row, columns, mask, parts_stride, split_stride, delta_stride, SPLIT_K)
    tl.store(out + row * out_stride + columns, values.to(out.dtype.element_ty), mask=mask)


@triton.jit
def load_sum(parts, delta, row, columns, mask, parts_stride, split_stride, delta_stride, SPLIT_K: tl.constexpr):
    """float32, like `columns`: the sum of a row's splits, and of its delta where there is one."""
    values = load_splits(parts + row * parts_stride + columns, split_stride, mask, SPLIT_K)
    if delta is not None:
        values += tl.load(delta + row * delta_stride + columns, mask=mask, other=0.0).to(tl.float32)
    return values


@triton.jit
def load_splits(parts, split_stride, mask, SPLIT_K: tl.constexpr):
    """float32: the sum of the values at ``parts``, and of those of the other splits."""
    values = tl.load(parts, mask=mask, other=0.0).to(tl.float32)
    for split in tl.static_range(1, SPLIT_K):
        values += tl.load(parts + split * split_stride, mask=mask, other=0.0)
    return values
