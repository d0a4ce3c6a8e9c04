"""SwiGLU and GeGLU in Triton. `punica_kernels.activation` checks the arguments and documents the shapes."""

import triton
import triton.language as tl
from torch import Tensor

from punica_kernels.gpu.pdl import await_predecessors, pdl_options, start_dependents

_BLOCK = 1024


def silu_and_mul(out: Tensor, gate_up: Tensor, delta: Tensor | None = None, *, pdl: bool = False) -> None:
    """out = silu(gate) * up, where [gate, up] = gate_up + delta, in one launch."""
    _launch(out, gate_up, delta, pdl, gelu=False)


def gelu_and_mul(out: Tensor, gate_up: Tensor, delta: Tensor | None = None, *, pdl: bool = False) -> None:
    """out = gelu(gate) * up, where [gate, up] = gate_up + delta, in one launch."""
    _launch(out, gate_up, delta, pdl, gelu=True)


def _launch(out: Tensor, gate_up: Tensor, delta: Tensor | None, pdl: bool, *, gelu: bool) -> None:
    num_rows, width = out.shape
    if num_rows == 0:
        return
    block = min(_BLOCK, triton.next_power_of_2(width))
    _gate_and_mul[(num_rows, triton.cdiv(width, block))](
        out,
        gate_up,
        delta,
        out.stride(0),
        gate_up.stride(0),
        delta.stride(0) if delta is not None else 0,
        GELU=gelu,
        WIDTH=width,
        BLOCK=block,
        num_warps=4,
        **pdl_options(out.device, wait=pdl),
    )


@triton.jit
def _gate_and_mul(
    out,
    gate_up,
    delta,
    out_stride,
    gate_up_stride,
    delta_stride,
    GELU: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL_TRIGGER: tl.constexpr,
    PDL_WAIT: tl.constexpr,
):
    """One program per row and block of columns."""
    await_predecessors(PDL_WAIT)
    start_dependents(PDL_TRIGGER)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < WIDTH
    gate_up += row * gate_up_stride + columns
    gate = tl.load(gate_up, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + WIDTH, mask=mask, other=0.0).to(tl.float32)
    if delta is not None:
        delta += row * delta_stride + columns
        gate += tl.load(delta, mask=mask, other=0.0).to(tl.float32)
        up += tl.load(delta + WIDTH, mask=mask, other=0.0).to(tl.float32)
    activated = gated(gate, up, GELU, out.dtype.element_ty)
    tl.store(out + row * out_stride + columns, activated, mask=mask)


@triton.jit
def gated(gate, up, GELU: tl.constexpr, dtype: tl.constexpr):
    """activation(gate) * up of float32 numbers, rounded to ``dtype``, as the activation is before."""
    # gelu's 0.5 * (1 + tanh(y)) is the sigmoid of 2y, with y = sqrt(2 / pi) * (x + 0.044715 x^3).
    logit = gate
    if GELU:
        logit = tl.maximum(1.5957691216057308 * gate * (1.0 + 0.044715 * gate * gate), -80.0)
    activated = (gate / (1.0 + tl.exp(-logit))).to(dtype).to(tl.float32)
    return (activated * up).to(dtype)
