"""SGMV's shrink in Triton. `punica_kernels.lora_table` has the layout of its table, `punica_kernels.sgmv` the maths.

Decoding is bound by latency, then by the bytes of the adapters. So one-row segments multiply and reduce without the
padding of tensor-core tiles, and K is split among programs. They write separate partial sums: nothing needs zeroing or
atomics, and the result is the same every time.
"""

import triton
import triton.language as tl

from punica_kernels.gpu.lora_constants import (
    BLOCK_FIRST_ROW,
    BLOCK_NUM_ROWS,
    BLOCK_NUMBER,
    BLOCK_RANKS,
    FIRST_BLOCK_PAGE,
    PAGE_RANKS,
    RANK_BLOCK_WORDS,
    TILE_ROWS,
)
from punica_kernels.gpu.pdl import await_predecessors, start_dependents


@triton.jit(do_not_specialize=["max_rank_blocks"])
def sgmv_shrink(
    v,
    x,
    a,
    rank_blocks,
    max_rank_blocks,
    x_stride,
    page_stride,
    H_IN: tl.constexpr,
    MAX_RANKS: tl.constexpr,
    K_PER_SPLIT: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WARP_SLICES: tl.constexpr,
    EVEN_K: tl.constexpr,
    PDL_TRIGGER: tl.constexpr,
    PDL_WAIT: tl.constexpr,
):
    """v[split, row, slice, rank] = partial x A, for every rank block. Grid: splits, rank block programs, slices."""
    start_dependents(PDL_TRIGGER)
    k_start = tl.program_id(0) * K_PER_SPLIT
    ranks = tl.arange(0, BLOCK_RANKS)
    slice_id = tl.program_id(2)
    a_slice = a + slice_id * (PAGE_RANKS * H_IN) + (ranks % PAGE_RANKS) * H_IN + k_start
    x += k_start
    v_row_stride = tl.num_programs(2) * tl.num_programs(0) * MAX_RANKS
    v += (slice_id * tl.num_programs(0) + tl.program_id(0)) * MAX_RANKS
    block = tl.program_id(1)
    words = rank_blocks + block * RANK_BLOCK_WORDS
    first_row, rows, number, page_0, page_1 = load_rank_block(words, block < max_rank_blocks)
    while rows > 0:
        page = tl.where(ranks < PAGE_RANKS, page_0, page_1).to(tl.int64)
        a_rows = a_slice + page * page_stride
        row = first_row.to(tl.int64)
        out = v + number * BLOCK_RANKS
        # Loaded early, so that the next iteration does not wait for it.
        block += tl.num_programs(1)
        next_block = load_rank_block(rank_blocks + block * RANK_BLOCK_WORDS, block < max_rank_blocks)
        if rows == 1:
            acc_row = _shrink_row(
                x + row * x_stride, a_rows, page >= 0, H_IN - k_start, K_PER_SPLIT, BLOCK_K, EVEN_K, PDL_WAIT
            )
            tl.store(out + row * v_row_stride + ranks, acc_row)
        else:
            tile = tl.arange(0, TILE_ROWS)
            live = tile < rows
            x_rows = x + (row + tile) * x_stride
            acc_tile = _shrink_tile(
                x_rows, live, a_rows, page >= 0, H_IN - k_start, K_PER_SPLIT, BLOCK_K, WARP_SLICES, EVEN_K, PDL_WAIT
            )
            v_rows = out + (row + tile) * v_row_stride
            tl.store(v_rows[:, None] + ranks[None, :], acc_tile, mask=live[:, None])
        first_row, rows, number, page_0, page_1 = next_block
    # Also without rank blocks: the expand that waits for this launch writes to what earlier kernels may still read.
    await_predecessors(PDL_WAIT)


@triton.jit
def load_rank_block(words, inside):
    """(first row, rows, number, page, page) of a rank block; no rows past the last one."""
    return (
        tl.load(words + BLOCK_FIRST_ROW, mask=inside, other=-1),
        tl.load(words + BLOCK_NUM_ROWS, mask=inside, other=-1),
        tl.load(words + BLOCK_NUMBER, mask=inside, other=-1),
        tl.load(words + FIRST_BLOCK_PAGE, mask=inside, other=-1),
        tl.load(words + FIRST_BLOCK_PAGE + 1, mask=inside, other=-1),
    )


@triton.jit
def _shrink_row(
    x_row,
    a_rows,
    used,
    k_left,
    K_PER_SPLIT: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    PDL_WAIT: tl.constexpr,
):
    """[ranks]: one row of x times the rows of A that are `used`, in one split."""
    ks = tl.arange(0, BLOCK_K)
    w = tl.load(a_rows[:, None] + ks[None, :], mask=_inside(used[:, None], ks[None, :], k_left, EVEN_K), other=0.0)
    await_predecessors(PDL_WAIT)
    acc = tl.sum(w.to(tl.float32) * _load_row(x_row, ks, k_left, EVEN_K)[None, :], axis=1)
    for k in range(BLOCK_K, K_PER_SPLIT, BLOCK_K):
        mask = _inside(used[:, None], ks[None, :] + k, k_left, EVEN_K)
        w = tl.load(a_rows[:, None] + ks[None, :] + k, mask=mask, other=0.0)
        acc += tl.sum(w.to(tl.float32) * _load_row(x_row, ks + k, k_left, EVEN_K)[None, :], axis=1)
    return acc


@triton.jit
def _shrink_tile(
    x_rows,
    live,
    a_rows,
    used,
    k_left,
    K_PER_SPLIT: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WARP_SLICES: tl.constexpr,
    EVEN_K: tl.constexpr,
    PDL_WAIT: tl.constexpr,
):
    """[rows, ranks]: the same for a tile of rows, on tensor cores. Each warp multiplies its own slice of a block."""
    K_PER_WARP: tl.constexpr = BLOCK_K // WARP_SLICES
    # [warp slices, 1, k] and [warp slices, k, 1]
    ks = (tl.arange(0, WARP_SLICES) * K_PER_WARP)[:, None, None] + tl.arange(0, K_PER_WARP)[None, None, :]
    ks_down = (tl.arange(0, WARP_SLICES) * K_PER_WARP)[:, None, None] + tl.arange(0, K_PER_WARP)[None, :, None]
    x_tile = x_rows[None, :, None] + ks
    a_tile = a_rows[None, None, :] + ks_down
    live = live[None, :, None]
    used = used[None, None, :]
    w = tl.load(a_tile, mask=_inside(used, ks_down, k_left, EVEN_K), other=0.0)
    await_predecessors(PDL_WAIT)
    x = tl.load(x_tile, mask=_inside(live, ks, k_left, EVEN_K), other=0.0)
    acc = tl.dot(x, w, input_precision="ieee")
    for k in range(BLOCK_K, K_PER_SPLIT, BLOCK_K):
        w = tl.load(a_tile + k, mask=_inside(used, ks_down + k, k_left, EVEN_K), other=0.0)
        x = tl.load(x_tile + k, mask=_inside(live, ks + k, k_left, EVEN_K), other=0.0)
        acc = tl.dot(x, w, acc, input_precision="ieee")
    return tl.sum(acc, axis=0)


@triton.jit
def _inside(used, ks, k_left, EVEN_K: tl.constexpr):
    if EVEN_K:
        return used
    else:  # Triton compiles one branch only: their shapes differ.
        return used & (ks < k_left)


@triton.jit
def _load_row(row, ks, k_left, EVEN_K: tl.constexpr):
    if EVEN_K:
        return tl.load(row + ks).to(tl.float32)
    return tl.load(row + ks, mask=ks < k_left, other=0.0).to(tl.float32)
