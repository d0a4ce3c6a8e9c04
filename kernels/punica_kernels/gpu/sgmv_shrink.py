"""SGMV's shrink in Triton. `punica_kernels.lora_table` has the layout of its table, `punica_kernels.sgmv` the maths.

Decoding is bound by latency, then by the bytes of the adapters. So one-row segments multiply and reduce, without the
padding of tensor-core tiles; and K is split among programs, which write partial sums that nobody has to zero or add
atomically, so the result is the same every time.
"""

import triton
import triton.language as tl

from punica_kernels import lora_table

TILE_ROWS = tl.constexpr(lora_table.TILE_ROWS)
PAGE_RANKS = tl.constexpr(lora_table.PAGE_RANKS)
ITEM_RANKS = tl.constexpr(lora_table.ITEM_RANKS)
ITEM_WORDS = tl.constexpr(lora_table.ITEM_WORDS)


@triton.jit(do_not_specialize=["max_items"])
def sgmv_shrink(
    v,
    x,
    a,
    items,
    max_items,
    x_stride,
    page_stride,
    H_IN: tl.constexpr,
    MAX_RANKS: tl.constexpr,
    SPLIT_K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    EVEN_K: tl.constexpr,
    PDL: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """v[split, row, slice, rank] = the split's part of x A, for every item. Grid: splits, item programs, slices."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    k_start = tl.program_id(0) * SPLIT_K
    ranks = tl.arange(0, ITEM_RANKS)
    part = tl.program_id(2)
    a_slice = a + part * (PAGE_RANKS * H_IN) + (ranks % PAGE_RANKS) * H_IN + k_start
    x += k_start
    v_row_stride = tl.num_programs(2) * tl.num_programs(0) * MAX_RANKS
    v += (part * tl.num_programs(0) + tl.program_id(0)) * MAX_RANKS
    item = tl.program_id(1)
    first_row, rows, place, page_0, page_1 = _load_item(items + item * ITEM_WORDS, item < max_items)
    while rows > 0:
        page = tl.where(ranks < PAGE_RANKS, page_0, page_1).to(tl.int64)
        a_rows = a_slice + page * page_stride
        row = first_row.to(tl.int64)
        out = v + place * ITEM_RANKS
        # Asked for now, to be there when the program would otherwise end.
        item += tl.num_programs(1)
        next_item = _load_item(items + item * ITEM_WORDS, item < max_items)
        if rows == 1:
            total = _shrink_row(
                x + row * x_stride, a_rows, page >= 0, H_IN - k_start, SPLIT_K, BLOCK_K, EVEN_K, CHAINED
            )
            tl.store(out + row * v_row_stride + ranks, total)
        else:
            tile = tl.arange(0, TILE_ROWS)
            live = tile < rows
            x_rows = x + (row + tile) * x_stride
            totals = _shrink_tile(
                x_rows, live, a_rows, page >= 0, H_IN - k_start, SPLIT_K, BLOCK_K, PARTS, EVEN_K, CHAINED
            )
            v_rows = out + (row + tile) * v_row_stride
            tl.store(v_rows[:, None] + ranks[None, :], totals, mask=live[:, None])
        first_row, rows, place, page_0, page_1 = next_item
    if CHAINED:
        # Without items, too: an expand that waits for this launch writes what those before it may still read.
        tl.extra.cuda.gdc_wait()


@triton.jit
def _load_item(words, inside):
    """(first row, rows, place in the rank order, page, page); no rows past the last item."""
    return (
        tl.load(words, mask=inside, other=-1),
        tl.load(words + 1, mask=inside, other=-1),
        tl.load(words + 2, mask=inside, other=-1),
        tl.load(words + 3, mask=inside, other=-1),
        tl.load(words + 4, mask=inside, other=-1),
    )


@triton.jit
def _shrink_row(
    x_row,
    a_rows,
    used,
    k_left,
    SPLIT_K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """[ranks]: a row of x times rows of A, of which some are used, in one split."""
    ks = tl.arange(0, BLOCK_K)
    w = tl.load(a_rows[:, None] + ks[None, :], mask=_inside(used[:, None], ks[None, :], k_left, EVEN_K), other=0.0)
    if CHAINED:
        tl.extra.cuda.gdc_wait()
    total = tl.sum(w.to(tl.float32) * _load_row(x_row, ks, k_left, EVEN_K)[None, :], axis=1)
    for k in range(BLOCK_K, SPLIT_K, BLOCK_K):
        mask = _inside(used[:, None], ks[None, :] + k, k_left, EVEN_K)
        w = tl.load(a_rows[:, None] + ks[None, :] + k, mask=mask, other=0.0)
        total += tl.sum(w.to(tl.float32) * _load_row(x_row, ks + k, k_left, EVEN_K)[None, :], axis=1)
    return total


@triton.jit
def _shrink_tile(
    x_rows,
    live,
    a_rows,
    used,
    k_left,
    SPLIT_K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    EVEN_K: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """[rows, ranks]: the same of a tile of rows, on tensor cores. Each warp multiplies its own part of a block."""
    PART_K: tl.constexpr = BLOCK_K // PARTS
    # [parts, 1, k] and [parts, k, 1]
    ks = (tl.arange(0, PARTS) * PART_K)[:, None, None] + tl.arange(0, PART_K)[None, None, :]
    ks_down = (tl.arange(0, PARTS) * PART_K)[:, None, None] + tl.arange(0, PART_K)[None, :, None]
    x_tile = x_rows[None, :, None] + ks
    a_tile = a_rows[None, None, :] + ks_down
    live = live[None, :, None]
    used = used[None, None, :]
    w = tl.load(a_tile, mask=_inside(used, ks_down, k_left, EVEN_K), other=0.0)
    if CHAINED:
        tl.extra.cuda.gdc_wait()
    x = tl.load(x_tile, mask=_inside(live, ks, k_left, EVEN_K), other=0.0)
    totals = tl.dot(x, w, input_precision="ieee")
    for k in range(BLOCK_K, SPLIT_K, BLOCK_K):
        w = tl.load(a_tile + k, mask=_inside(used, ks_down + k, k_left, EVEN_K), other=0.0)
        x = tl.load(x_tile + k, mask=_inside(live, ks + k, k_left, EVEN_K), other=0.0)
        totals = tl.dot(x, w, totals, input_precision="ieee")
    return tl.sum(totals, axis=0)


@triton.jit
def _inside(used, ks, k_left, EVEN_K: tl.constexpr):
    if EVEN_K:
        return used
    else:  # Triton wants one branch alone: their shapes differ.
        return used & (ks < k_left)


@triton.jit
def _load_row(row, ks, k_left, EVEN_K: tl.constexpr):
    if EVEN_K:
        return tl.load(row + ks).to(tl.float32)
    return tl.load(row + ks, mask=ks < k_left, other=0.0).to(tl.float32)
