"""RMSNorm in Triton. `punica_kernels.norm` checks the arguments and documents the shapes."""

import triton
import triton.language as tl
from torch import Tensor

from punica_kernels.gpu.launch import pdl_options


def rms_norm(out: Tensor, x: Tensor, weight: Tensor, eps: float, *, pdl: bool = False) -> None:
    """out = rms_norm(x), in one launch."""
    _launch(out, x, None, None, weight, None, eps, pdl)


def add_rms_norm(
    out: Tensor,
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    delta: Tensor | None = None,
    added_weight: Tensor | None = None,
    *,
    pdl: bool = False,
) -> None:
    """residual += x + delta, maybe normed, then out = rms_norm(residual), in one launch. x may be split-K sums."""
    _launch(out, x, residual, delta, weight, added_weight, eps, pdl)


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
    block = triton.next_power_of_2(width)
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
        WIDTH=width,
        BLOCK=block,
        SPLIT_K=x.shape[0] if x.dim() == 3 else 1,
        num_warps=min(16, max(4, block // 512)),
        **pdl_options(x.device, wait=pdl),
    )


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
    if PDL_WAIT:
        # No kernel writes a norm's weight, so it is loaded before the wait.
        tl.extra.cuda.gdc_wait()
    if PDL_TRIGGER:
        tl.extra.cuda.gdc_launch_dependents()
    x += row * x_stride + columns
    values = tl.load(x, mask=mask, other=0.0).to(tl.float32)
    for split in tl.static_range(1, SPLIT_K):
        values += tl.load(x + split * split_stride, mask=mask, other=0.0)
    if residual is not None:
        if delta is not None:
            values += tl.load(delta + row * delta_stride + columns, mask=mask, other=0.0).to(tl.float32)
        if added_weight is not None:
            gain_of_added = tl.load(added_weight + columns, mask=mask, other=0.0)
            values = _normed(values, gain_of_added, eps, WIDTH).to(out.dtype.element_ty).to(tl.float32)
        residual += row * residual_stride + columns
        total = (tl.load(residual, mask=mask, other=0.0).to(tl.float32) + values).to(residual.dtype.element_ty)
        tl.store(residual, total, mask=mask)
        values = total.to(tl.float32)
    tl.store(out + row * out_stride + columns, _normed(values, gain, eps, WIDTH).to(out.dtype.element_ty), mask=mask)


@triton.jit
def _normed(values, gain, eps, WIDTH: tl.constexpr):
    """float32, like values: the quotient, rounded to the dtype of `gain`, times it."""
    quotient = values * tl.rsqrt(tl.sum(values * values, axis=0) / WIDTH + eps)
    return quotient.to(gain.dtype).to(tl.float32) * gain.to(tl.float32)
