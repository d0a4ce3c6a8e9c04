"""Root mean square layer normalisation in Triton. `punica_kernels.norm` checks the arguments and has the shapes."""

import triton
import triton.language as tl
from torch import Tensor

from punica_kernels.gpu.launch import can_overlap, launch_options


def rms_norm(out: Tensor, x: Tensor, weight: Tensor, eps: float, *, chained: bool = False) -> None:
    """out = rms_norm(x), one launch."""
    _launch(out, x, None, None, weight, eps, chained)


def add_rms_norm(
    out: Tensor,
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    delta: Tensor | None = None,
    *,
    chained: bool = False,
) -> None:
    """residual += x + delta, then out = rms_norm(residual), one launch. x may have parts that are added too."""
    _launch(out, x, residual, delta, weight, eps, chained)


def _launch(
    out: Tensor, x: Tensor, residual: Tensor | None, delta: Tensor | None, weight: Tensor, eps: float, chained: bool
) -> None:
    num_rows, width = out.shape
    if num_rows == 0:
        return
    overlap = can_overlap(x.device)
    block = triton.next_power_of_2(width)
    _rms_norm[(num_rows,)](
        out,
        x,
        residual,
        delta,
        weight,
        eps,
        out.stride(0),
        x.stride(-2),
        x.stride(0),
        residual.stride(0) if residual is not None else 0,
        delta.stride(0) if delta is not None else 0,
        WIDTH=width,
        BLOCK=block,
        PARTS=x.shape[0] if x.dim() == 3 else 1,
        PDL=overlap,
        CHAINED=overlap and chained,
        **launch_options(min(16, max(4, block // 512)), overlap=overlap and chained),
    )


@triton.jit
def _rms_norm(
    out,
    x,
    residual,
    delta,
    weight,
    eps,
    out_stride,
    x_stride,
    part_stride,
    residual_stride,
    delta_stride,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    PDL: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """One program per row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < WIDTH
    gain = tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    if CHAINED:
        # No kernel writes a norm's weight, so it is on its way already.
        tl.extra.cuda.gdc_wait()
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    x += row * x_stride + columns
    values = tl.load(x, mask=mask, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        values += tl.load(x + part * part_stride, mask=mask, other=0.0)
    if residual is not None:
        if delta is not None:
            values += tl.load(delta + row * delta_stride + columns, mask=mask, other=0.0).to(tl.float32)
        residual += row * residual_stride + columns
        total = (tl.load(residual, mask=mask, other=0.0).to(tl.float32) + values).to(residual.dtype.element_ty)
        tl.store(residual, total, mask=mask)
        values = total.to(tl.float32)
    quotient = values * tl.rsqrt(tl.sum(values * values, axis=0) / WIDTH + eps)
    rounded = quotient.to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * out_stride + columns, (rounded * gain).to(out.dtype.element_ty), mask=mask)
