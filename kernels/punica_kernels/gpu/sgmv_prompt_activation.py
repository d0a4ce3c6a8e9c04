"""A tile of a long prompt in the activation that expands gate and up (`punica_kernels.gpu.sgmv_activation`)."""

import triton
import triton.language as tl

from punica_kernels.gpu.activation import gated
from punica_kernels.gpu.expand_products import product, sum_rows
from punica_kernels.gpu.expand_tile import load_blocks, load_first_blocks
from punica_kernels.gpu.lora_constants import BLOCK_RANKS


@triton.jit
def activate_prompt(
    out,
    gate_up,
    v,
    b,
    tile,
    live,
    width_left,
    page_stride,
    WIDTH: tl.constexpr,
    GELU: tl.constexpr,
    sizes: tl.constexpr,
):
    """A tile of a long prompt, all columns at once: everything but more rank blocks is requested before it is used."""
    columns = tl.arange(0, sizes.BLOCK_N)
    inside = columns < width_left
    mask = live[:, None] & (inside[None, :] | sizes.EVEN_N)
    gate_base = tl.load(gate_up + columns[None, :], mask=mask, other=0.0)
    up_base = tl.load(gate_up + WIDTH + columns[None, :], mask=mask, other=0.0)
    b += columns
    up_v = v + sizes.MAX_RANKS
    num_blocks = tile.num_rank_blocks
    w = load_first_blocks(b, tile, num_blocks, page_stride, inside, 1, sizes)
    u = load_first_blocks(b + WIDTH, tile, num_blocks, page_stride, inside, 1, sizes)
    has_lora = live & (num_blocks > 0)
    gate_sums, up_sums = sum_rows(v, has_lora, sizes), sum_rows(up_v, has_lora, sizes)
    gate = product(gate_sums, w, gate_base.to(tl.float32))
    up = product(up_sums, u, up_base.to(tl.float32))
    for block in tl.range(1, num_blocks, num_stages=1):
        w = load_blocks(b, tile, block, block + 1, page_stride, inside, 1, sizes)
        u = load_blocks(b + WIDTH, tile, block, block + 1, page_stride, inside, 1, sizes)
        gate = product(sum_rows(v + block * BLOCK_RANKS, live, sizes), w, gate)
        up = product(sum_rows(up_v + block * BLOCK_RANKS, live, sizes), u, up)
    tl.store(out + columns[None, :], gated(gate, up, GELU, out.dtype.element_ty), mask=mask)
