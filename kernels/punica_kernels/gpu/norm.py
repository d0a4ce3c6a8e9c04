"""RMSNorm in Triton. `punica_kernels.norm` checks the arguments and documents the shapes."""

import triton
import triton.language as tl
from torch import Tensor

from punica_kernels.block_end import BlockEnd
from punica_kernels.gpu.partial_sums import load_sum
from punica_kernels.gpu.pdl import await_predecessors, pdl_options, start_dependents


def rms_norm(out: Tensor, x: Tensor, weight: Tensor, eps: float, *, pdl: bool = False) -> None:
    """out = rms_norm(x), in one launch."""
    _launch(out, x, None, None, weight, None, eps, pdl)


def add_rms_norm(end: BlockEnd, *, pdl: bool = False) -> None:
    """The end of a block, in one launch."""
    _launch(end.out, end.x, end.residual, end.delta, end.weight, end.added_weight, end.eps, pdl)


def _launch(
    out: Tensor,
    x: Tensor,
    residual: Tensor | None,
    delta: Tensor | None,
    weight: Tensor,
    added_weight: Tensor | None,
    eps: float,
    pdl: bool,
) -> None:
    num_rows, width = out.shape
    if num_rows == 0:
        return
    _rms_norm[(num_rows,)](
        out,
        x,
        residual,
        delta,
        weight,
        added_weight,
        eps,
        out.stride(0),
        x.stride(-2),
        x.stride(0),
        residual.stride(0) if residual is not None else 0,
        delta.stride(0) if delta is not None else 0,
        SPLIT_K=x.shape[0] if x.dim() == 3 else 1,
        **row_config(width),
        **pdl_options(x.device, wait=pdl),
    )


def row_config(width: int) -> dict[str, int]:
    """The sizes and warps of kernels whose programs hold a row of this width in registers."""
    block = triton.next_power_of_2(width)
    return {"WIDTH": width, "BLOCK": block, "num_warps": min(16, max(4, block // 512))}


@triton.jit
def _rms_norm(
    out,
    x,
    residual,
    delta,
    weight,
    added_weight,
    eps,
    out_stride,
    x_stride,
    split_stride,
    residual_stride,
    delta_stride,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLIT_K: tl.constexpr,
    PDL_TRIGGER: tl.constexpr,
    PDL_WAIT: tl.constexpr,
):
    """One program per row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < WIDTH
    gain = tl.load(weight + columns, mask=mask, other=0.0)
    # No kernel writes a norm's weight, so it is loaded before the wait.
    await_predecessors(PDL_WAIT)
    start_dependents(PDL_TRIGGER)
    values = load_sum(x, delta, row, columns, mask, x_stride, split_stride, delta_stride, SPLIT_K)
    if residual is not None:
        if added_weight is not None:
            gain_of_added = tl.load(added_weight + columns, mask=mask, other=0.0)
            values = normed(values, gain_of_added, eps, WIDTH).to(out.dtype.element_ty).to(tl.float32)
        residual += row * residual_stride + columns
        total = (tl.load(residual, mask=mask, other=0.0).to(tl.float32) + values).to(residual.dtype.element_ty)
        tl.store(residual, total, mask=mask)
        values = total.to(tl.float32)
    tl.store(out + row * out_stride + columns, normed(values, gain, eps, WIDTH).to(out.dtype.element_ty), mask=mask)


@triton.jit
def normed(values, gain, eps, WIDTH: tl.constexpr):
    """float32, like values: the quotient, rounded to the dtype of `gain`, times it."""
    quotient = values * tl.rsqrt(tl.sum(values * values, axis=0) / WIDTH + eps)
    return quotient.to(gain.dtype).to(tl.float32) * gain.to(tl.float32)
