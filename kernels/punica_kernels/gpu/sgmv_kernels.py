"""The two SGMV kernels in Triton. `punica_kernels.lora_table` has the layout of their table, `sgmv` their maths.

Decoding is bound by latency, then by the bytes of the adapters. So one-row segments multiply and reduce, without the
padding of tensor-core tiles; K is split among programs, which write partial sums that nobody has to zero or add
atomically, so the result is the same every time; and the expand is launched while the shrink runs (programmatic
dependent launch), has its weights under way before it waits, and then adds the partial sums.
"""

import triton
import triton.language as tl

from punica_kernels import lora_table

TILE_ROWS = tl.constexpr(lora_table.TILE_ROWS)
PAGE_RANKS = tl.constexpr(lora_table.PAGE_RANKS)
ITEM_PAGES = tl.constexpr(lora_table.ITEM_PAGES)
ITEM_RANKS = tl.constexpr(lora_table.ITEM_RANKS)
ITEM_WORDS = tl.constexpr(lora_table.ITEM_WORDS)
HEADER_WORDS = tl.constexpr(lora_table.TILE_HEADER_WORDS)


@triton.jit(do_not_specialize=["max_items", "max_rows"])
def sgmv_shrink(
    v,
    x,
    a,
    items,
    max_items,
    max_rows,
    max_ranks,
    x_stride,
    page_stride,
    slice_stride,
    h_in,
    SPLIT_K: tl.constexpr,
    BLOCK_K: tl.constexpr,
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
    a_slice = a + part * slice_stride + (ranks % PAGE_RANKS) * h_in + k_start
    x += k_start
    v_row_stride = tl.num_programs(2) * max_ranks
    v += tl.program_id(0) * max_rows * v_row_stride + part * max_ranks
    item = tl.program_id(1)
    rows = tl.load(items + item * ITEM_WORDS + 1)
    while rows > 0:
        words = items + item * ITEM_WORDS
        first_row = tl.load(words).to(tl.int64)
        page = tl.where(ranks < PAGE_RANKS, tl.load(words + 3), tl.load(words + 4)).to(tl.int64)
        a_rows = a_slice + page * page_stride
        v_row = v + tl.load(words + 2) * ITEM_RANKS
        if rows == 1:
            total = _shrink_row(
                x + first_row * x_stride, a_rows, page >= 0, h_in - k_start, SPLIT_K, BLOCK_K, EVEN_K, CHAINED
            )
            tl.store(v_row + first_row * v_row_stride + ranks, total)
        else:
            tile = tl.arange(0, TILE_ROWS)
            live = tile < rows
            x_rows = x + (first_row + tile) * x_stride
            totals = _shrink_tile(x_rows, live, a_rows, page >= 0, h_in - k_start, SPLIT_K, BLOCK_K, EVEN_K, CHAINED)
            v_rows = v_row + (first_row + tile) * v_row_stride
            tl.store(v_rows[:, None] + ranks[None, :], totals, mask=live[:, None])
        item += tl.num_programs(1)
        rows = tl.load(items + item * ITEM_WORDS + 1, mask=item < max_items, other=0)


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
    w = _load_rows(a_rows, used, ks, k_left, EVEN_K)
    if CHAINED:
        tl.extra.cuda.gdc_wait()
    total = tl.sum(w.to(tl.float32) * _load_row(x_row, ks, k_left, EVEN_K)[None, :], axis=1)
    for k in range(BLOCK_K, SPLIT_K, BLOCK_K):
        w = _load_rows(a_rows, used, ks + k, k_left, EVEN_K)
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
    EVEN_K: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """[rows, ranks]: the same of a tile of rows, on tensor cores."""
    ks = tl.arange(0, BLOCK_K)
    w = _load_rows(a_rows, used, ks, k_left, EVEN_K)
    if CHAINED:
        tl.extra.cuda.gdc_wait()
    totals = tl.dot(_load_rows(x_rows, live, ks, k_left, EVEN_K), tl.trans(w), input_precision="ieee")
    for k in range(BLOCK_K, SPLIT_K, BLOCK_K):
        w = _load_rows(a_rows, used, ks + k, k_left, EVEN_K)
        x = _load_rows(x_rows, live, ks + k, k_left, EVEN_K)
        totals = tl.dot(x, tl.trans(w), totals, input_precision="ieee")
    return totals


@triton.jit
def _load_rows(rows, used, ks, k_left, EVEN_K: tl.constexpr):
    if EVEN_K:
        return tl.load(rows[:, None] + ks[None, :], mask=used[:, None], other=0.0)
    return tl.load(rows[:, None] + ks[None, :], mask=used[:, None] & (ks < k_left)[None, :], other=0.0)


@triton.jit
def _load_row(row, ks, k_left, EVEN_K: tl.constexpr):
    if EVEN_K:
        return tl.load(row + ks).to(tl.float32)
    return tl.load(row + ks, mask=ks < k_left, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["max_rows"])
def sgmv_expand(
    y,
    v,
    b,
    tiles,
    tile_words,
    max_rows,
    max_ranks,
    y_stride,
    page_stride,
    end_0,
    end_1,
    end_2,
    SLICES: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    EVEN_N: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    PDL: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """y = v B, or y += v B, for every tile. Grid: blocks of each slice's outputs one after another, tiles."""
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
    words = tiles + tl.program_id(1) * tile_words
    rows = tl.load(words + 1)
    num_items = tl.load(words + 2)
    first_row = tl.load(words).to(tl.int64)
    part, n_start, n_end = _output_block(end_0, end_1, end_2, BLOCK_N)
    ns = n_start + tl.arange(0, BLOCK_N)
    inside = ns < n_end
    b += ns
    v_row_stride = SLICES * max_ranks
    v_split_stride = max_rows * v_row_stride
    v += part * max_ranks + first_row * v_row_stride
    y += first_row * y_stride + ns
    if num_items > 0:
        w = _load_b(b, words, page_stride, end_2, inside, EVEN_N)
        if PDL:
            tl.extra.cuda.gdc_wait()
        if rows == 1:
            total = tl.sum(w.to(tl.float32) * _sum_row(v, v_split_stride, SPLITS)[:, None], axis=0)
            for item in range(1, num_items):
                w = _load_b(b, words + item * ITEM_PAGES, page_stride, end_2, inside, EVEN_N)
                row = _sum_row(v + item * ITEM_RANKS, v_split_stride, SPLITS)
                total += tl.sum(w.to(tl.float32) * row[:, None], axis=0)
            _write(y, total, inside, ACCUMULATE)
        else:
            tile = tl.arange(0, TILE_ROWS)
            live = tile < rows
            v_rows = v + tile * v_row_stride
            totals = tl.zeros((TILE_ROWS, BLOCK_N), dtype=tl.float32)
            totals = _product(_sum_rows(v_rows, live, v_split_stride, SPLITS), w, totals)
            for item in range(1, num_items):
                w = _load_b(b, words + item * ITEM_PAGES, page_stride, end_2, inside, EVEN_N)
                row_sums = _sum_rows(v_rows + item * ITEM_RANKS, live, v_split_stride, SPLITS)
                totals = _product(row_sums, w, totals)
            _write(y[None, :] + tile[:, None] * y_stride, totals, live[:, None] & inside[None, :], ACCUMULATE)
    elif not ACCUMULATE:
        for row in range(rows):
            tl.store(y + row * y_stride, tl.zeros((BLOCK_N,), y.dtype.element_ty), mask=inside)


@triton.jit
def _output_block(end_0, end_1, end_2, BLOCK_N: tl.constexpr):
    """(slice, first output, end of the slice's outputs) of this program; a slice starts where the last one ends."""
    block = tl.program_id(0)
    blocks_0 = tl.cdiv(end_0, BLOCK_N)
    blocks_1 = blocks_0 + tl.cdiv(end_1 - end_0, BLOCK_N)
    start = tl.where(block < blocks_0, 0, tl.where(block < blocks_1, end_0, end_1))
    first = tl.where(block < blocks_0, 0, tl.where(block < blocks_1, blocks_0, blocks_1))
    end = tl.where(block < blocks_0, end_0, tl.where(block < blocks_1, end_1, end_2))
    part = (block >= blocks_0).to(tl.int32) + (block >= blocks_1).to(tl.int32)
    return part, start + (block - first) * BLOCK_N, end


@triton.jit
def _load_b(b, words, page_stride, h_out, inside, EVEN_N: tl.constexpr):
    """[ranks, outputs] of an item's two pages; zeros where there is no page."""
    ranks = tl.arange(0, ITEM_RANKS)
    page = tl.where(ranks < PAGE_RANKS, tl.load(words + HEADER_WORDS), tl.load(words + HEADER_WORDS + 1)).to(tl.int64)
    rows = page * page_stride + (ranks % PAGE_RANKS) * h_out
    if EVEN_N:
        return tl.load(b[None, :] + rows[:, None], mask=(page >= 0)[:, None], other=0.0)
    return tl.load(b[None, :] + rows[:, None], mask=(page >= 0)[:, None] & inside[None, :], other=0.0)


@triton.jit
def _sum_row(v, v_split_stride, SPLITS: tl.constexpr):
    """[ranks]: a row's partial sums added up."""
    splits = tl.arange(0, SPLITS)[:, None]
    return tl.sum(tl.load(v + splits * v_split_stride + tl.arange(0, ITEM_RANKS)[None, :]), axis=0)


@triton.jit
def _sum_rows(v_rows, live, v_split_stride, SPLITS: tl.constexpr):
    """[rows, ranks]: the same of a tile of rows."""
    parts = v_rows[:, None] + tl.arange(0, ITEM_RANKS)[None, :]
    total = tl.load(parts, mask=live[:, None], other=0.0)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(parts + split * v_split_stride, mask=live[:, None], other=0.0)
    return total


@triton.jit
def _product(v, b, acc):
    """acc + v b for float32 v. Where b is of a half type the product is done twice, so that v loses nothing."""
    if b.dtype == tl.float32:
        return tl.dot(v, b, acc, input_precision="ieee")
    high = v.to(b.dtype)
    low = (v - high.to(tl.float32)).to(b.dtype)
    return tl.dot(low, b, tl.dot(high, b, acc))


@triton.jit
def _write(y, values, mask, ACCUMULATE: tl.constexpr):
    if ACCUMULATE:
        values += tl.load(y, mask=mask, other=0.0).to(tl.float32)
    tl.store(y, values.to(y.dtype.element_ty), mask=mask)
