"""v B of a row or a tile of rows, for operators that add it to what they read."""

import triton
import triton.language as tl

from punica_kernels.gpu.expand_products import product, row_product, sum_rows
from punica_kernels.gpu.expand_tile import load_blocks, load_first_blocks
from punica_kernels.gpu.lora_constants import BLOCK_RANKS


@triton.jit
def row_delta(v, b, tile, inside, page_stride, sizes: tl.constexpr):
    """v B of a row, with the smallest power of two that covers its rank blocks at a time; zeros without any."""
    num_blocks = tile.num_rank_blocks
    delta = tl.zeros((sizes.BLOCK_N,), tl.float32)
    for power in tl.static_range(sizes.LOG2_BLOCKS + 1):
        if num_blocks > (1 << power) // 2 and (num_blocks <= 1 << power or power == sizes.LOG2_BLOCKS):
            w = load_first_blocks(b, tile, num_blocks, page_stride, inside, 1 << power, sizes)
            delta += row_product(v, w, num_blocks, 1 << power, sizes)
            for block in tl.range(1 << power, num_blocks, 1 << power, num_stages=1):
                w = load_blocks(b, tile, block, num_blocks, page_stride, inside, 1 << power, sizes)
                delta += row_product(v + block * BLOCK_RANKS, w, num_blocks - block, 1 << power, sizes)
    return delta


@triton.jit
def tile_delta(v_rows, first_sums, b, tile, live, inside, page_stride, sizes: tl.constexpr):
    """v B of a tile; `first_sums`: of its first rank block."""
    w = load_first_blocks(b, tile, tile.num_rank_blocks, page_stride, inside, 1, sizes)
    delta = product(first_sums, w, tl.zeros((sizes.TILE_ROWS, sizes.TILE_N), tl.float32))
    for block in tl.range(1, tile.num_rank_blocks, num_stages=1):
        w = load_blocks(b, tile, block, block + 1, page_stride, inside, 1, sizes)
        delta = product(sum_rows(v_rows + block * BLOCK_RANKS, live, sizes), w, delta)
    return delta
