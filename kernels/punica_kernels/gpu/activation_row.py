"""One row of the activation that expands gate and up, on CUDA cores."""

import triton
import triton.language as tl

from punica_kernels.gpu.activation import gated
from punica_kernels.gpu.expand_delta import row_delta


@triton.jit
def activate_row(
    out,
    gate_up,
    v,
    b,
    tile,
    width_left,
    page_stride,
    WIDTH: tl.constexpr,
    GELU: tl.constexpr,
    sizes: tl.constexpr,
):
    """A block of outputs, of which `width_left` are there; all pointers are of the block's start."""
    ns = tl.arange(0, sizes.BLOCK_N)
    inside = ns < width_left
    gate_up += ns
    b += ns
    gate = tl.load(gate_up, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + WIDTH, mask=inside, other=0.0).to(tl.float32)
    gate += row_delta(v, b, tile, inside, page_stride, sizes)
    up += row_delta(v + sizes.SPLIT_K * sizes.MAX_RANKS, b + WIDTH, tile, inside, page_stride, sizes)
    tl.store(out + ns, gated(gate, up, GELU, out.dtype.element_ty), mask=inside)
