"""SGMV's expand in Triton. `punica_kernels.lora_table` has the layout of its table, `punica_kernels.sgmv` the maths.

It is launched while the shrink runs (programmatic dependent launch), has its weights under way before it waits, and
then adds up the partial sums. Its programs are one warp each, so that a column's products meet without leaving it.
"""

import triton
import triton.language as tl

from punica_kernels import lora_table

TILE_ROWS = tl.constexpr(lora_table.TILE_ROWS)
PAGE_RANKS = tl.constexpr(lora_table.PAGE_RANKS)
ITEM_PAGES = tl.constexpr(lora_table.ITEM_PAGES)
ITEM_RANKS = tl.constexpr(lora_table.ITEM_RANKS)
HEADER_WORDS = tl.constexpr(lora_table.TILE_HEADER_WORDS)


@triton.jit
def sgmv_expand(
    y,
    v,
    b,
    tiles,
    y_stride,
    page_stride,
    END_0: tl.constexpr,
    END_1: tl.constexpr,
    END_2: tl.constexpr,
    TILE_WORDS: tl.constexpr,
    SLICES: tl.constexpr,
    MAX_RANKS: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    TILE_N: tl.constexpr,
    ROW_POWERS: tl.constexpr,
    EVEN_N: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    PDL: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """y = v B, or y += v B, for every tile. Grid: blocks of each slice's outputs one after another, tiles."""
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
    part, n_start, n_end = _output_block(END_0, END_1, END_2, BLOCK_N)
    ns = tl.arange(0, BLOCK_N)
    inside = n_start + ns < n_end
    b += n_start
    V_ROW: tl.constexpr = SLICES * SPLITS * MAX_RANKS
    words = tiles + tl.program_id(1) * TILE_WORDS
    first_row = tl.load(words).to(tl.int64)
    rows = tl.load(words + 1)
    num_items = tl.load(words + 2)
    # All words at once: each wait for one that another's use hangs on would add to every program's time.
    first_block = tl.load(words + 3)
    block_step = tl.load(words + 4)
    pages = words + HEADER_WORDS
    page_0 = tl.load(pages)
    page_1 = tl.load(pages + 1)
    y += first_row * y_stride + n_start
    v += part * (SPLITS * MAX_RANKS) + first_row * V_ROW
    if num_items == 0:
        # Also where nothing is written: whoever waits for this launch takes it that those before it have ended.
        if PDL:
            tl.extra.cuda.gdc_wait()
        if not ACCUMULATE:
            for row in range(rows):
                tl.store(y + row * y_stride + ns, tl.zeros((BLOCK_N,), y.dtype.element_ty), mask=inside)
    elif rows > 1:
        # Narrower than a row's block, else a tile would take more registers, and all programs have the most of any.
        for block in tl.range(first_block, BLOCK_N // TILE_N, block_step, num_stages=1):
            columns = block * TILE_N + tl.arange(0, TILE_N)
            _expand_tile(
                y + columns,
                v,
                b + columns,
                page_0,
                page_1,
                pages,
                rows,
                num_items,
                n_start + columns < n_end,
                y_stride,
                page_stride,
                END_2,
                V_ROW,
                MAX_RANKS,
                SPLITS,
                EVEN_N,
                ACCUMULATE,
                PDL,
            )
    elif num_items > 0:
        # As few at a time as there are: each costs instructions, there or not.
        for power in tl.static_range(ROW_POWERS):
            if num_items > (1 << power) // 2 and (num_items <= 1 << power or power == ROW_POWERS - 1):
                _expand_row(
                    y + ns,
                    v,
                    b + ns,
                    page_0,
                    page_1,
                    pages,
                    num_items,
                    inside,
                    page_stride,
                    END_2,
                    MAX_RANKS,
                    SPLITS,
                    1 << power,
                    EVEN_N,
                    ACCUMULATE,
                    PDL,
                )


@triton.jit
def _expand_row(
    y_row,
    v_row,
    b,
    page_0,
    page_1,
    pages,
    num_items,
    inside,
    page_stride,
    H_OUT: tl.constexpr,
    MAX_RANKS: tl.constexpr,
    SPLITS: tl.constexpr,
    ITEMS: tl.constexpr,
    EVEN_N: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    PDL: tl.constexpr,
):
    """A row, ITEMS at a time, to have all their weights under way."""
    w = _load_b(b, page_0, page_1, pages, num_items, page_stride, H_OUT, inside, ITEMS, EVEN_N)
    if PDL:
        tl.extra.cuda.gdc_wait()
    total = _load_y(y_row, inside, ACCUMULATE)
    total += _row_product(v_row, w, num_items, MAX_RANKS, SPLITS, ITEMS)
    for item in tl.range(ITEMS, num_items, ITEMS):
        w = _load_items(b, pages, item, num_items, page_stride, H_OUT, inside, ITEMS, EVEN_N)
        total += _row_product(v_row + item * ITEM_RANKS, w, num_items - item, MAX_RANKS, SPLITS, ITEMS)
    tl.store(y_row, total.to(y_row.dtype.element_ty), mask=inside)


@triton.jit
def _expand_tile(
    y_row,
    v_row,
    b,
    page_0,
    page_1,
    pages,
    rows,
    num_items,
    inside,
    y_stride,
    page_stride,
    H_OUT: tl.constexpr,
    V_ROW: tl.constexpr,
    MAX_RANKS: tl.constexpr,
    SPLITS: tl.constexpr,
    EVEN_N: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    PDL: tl.constexpr,
):
    """A tile of rows, on tensor cores."""
    tile = tl.arange(0, TILE_ROWS)
    live = tile < rows
    y_rows = y_row[None, :] + tile[:, None] * y_stride
    v_rows = v_row + tile * V_ROW
    mask = live[:, None] & inside[None, :]
    w = _load_b(b, page_0, page_1, pages, 1, page_stride, H_OUT, inside, 1, EVEN_N)
    if PDL:
        tl.extra.cuda.gdc_wait()
    before = _load_y(y_rows, mask, ACCUMULATE)
    totals = tl.zeros(mask.shape, dtype=tl.float32)
    totals = _product(_sum_rows(v_rows, live, MAX_RANKS, SPLITS), w, totals)
    # One stage: the compiler's own pipelining takes more registers than it saves time.
    for item in tl.range(1, num_items, num_stages=1):
        w = _load_items(b, pages, item, item + 1, page_stride, H_OUT, inside, 1, EVEN_N)
        totals = _product(_sum_rows(v_rows + item * ITEM_RANKS, live, MAX_RANKS, SPLITS), w, totals)
    tl.store(y_rows, (totals + before).to(y_row.dtype.element_ty), mask=mask)


@triton.jit
def _output_block(END_0, END_1, END_2, BLOCK_N: tl.constexpr):
    """(slice, first output, end of the slice's outputs) of this program; a slice starts where the last one ends."""
    block = tl.program_id(0)
    blocks_0 = tl.cdiv(END_0, BLOCK_N)
    blocks_1 = blocks_0 + tl.cdiv(END_1 - END_0, BLOCK_N)
    start = tl.where(block < blocks_0, 0, tl.where(block < blocks_1, END_0, END_1))
    first = tl.where(block < blocks_0, 0, tl.where(block < blocks_1, blocks_0, blocks_1))
    end = tl.where(block < blocks_0, END_0, tl.where(block < blocks_1, END_1, END_2))
    part = (block >= blocks_0).to(tl.int32) + (block >= blocks_1).to(tl.int32)
    return part, start + (block - first) * BLOCK_N, end


@triton.jit
def _load_b(
    b,
    page_0,
    page_1,
    pages,
    items_left,
    page_stride,
    H_OUT: tl.constexpr,
    inside,
    ITEMS: tl.constexpr,
    EVEN_N: tl.constexpr,
):
    """[ranks, outputs] of ITEMS items, whose pages' numbers are page_0, page_1 and then those at ``pages`` + 2.

    Zeros, and no bytes read, where there is no page or no item left.
    """
    ranks = tl.arange(0, ITEMS * ITEM_RANKS)
    page = tl.where(ranks < PAGE_RANKS, page_0, page_1)
    for number in tl.static_range(ITEM_PAGES, ITEMS * ITEM_PAGES):
        # Words past a tile's last item are other words of the table: their values do not matter.
        page = tl.where(ranks // PAGE_RANKS == number, tl.load(pages + number), page)
    used = ((page >= 0) & (ranks // ITEM_RANKS < items_left))[:, None]
    rows = page.to(tl.int64) * page_stride + (ranks % PAGE_RANKS) * H_OUT
    if EVEN_N:
        return tl.load(b[None, :] + rows[:, None], mask=used, other=0.0)
    return tl.load(b[None, :] + rows[:, None], mask=used & inside[None, :], other=0.0)


@triton.jit
def _load_items(
    b,
    pages,
    item,
    num_items,
    page_stride,
    H_OUT: tl.constexpr,
    inside,
    ITEMS: tl.constexpr,
    EVEN_N: tl.constexpr,
):
    """The same from `item` on."""
    pages += item * ITEM_PAGES
    page_0, page_1 = tl.load(pages), tl.load(pages + 1)
    return _load_b(b, page_0, page_1, pages, num_items - item, page_stride, H_OUT, inside, ITEMS, EVEN_N)


@triton.jit
def _row_product(v, w, items_left, MAX_RANKS: tl.constexpr, SPLITS: tl.constexpr, ITEMS: tl.constexpr):
    """[outputs]: a row's sums over the splits times the weights of the items that are left of ITEMS."""
    splits = tl.arange(0, SPLITS)[:, None]
    ranks = tl.arange(0, ITEMS * ITEM_RANKS)[None, :]
    parts = tl.load(v + splits * MAX_RANKS + ranks, mask=(splits >= 0) & (ranks // ITEM_RANKS < items_left), other=0.0)
    return tl.sum(w.to(tl.float32) * tl.sum(parts, axis=0)[:, None], axis=0)


@triton.jit
def _sum_rows(v_rows, live, MAX_RANKS: tl.constexpr, SPLITS: tl.constexpr):
    """[rows, ranks]: the same of a tile of rows."""
    parts = v_rows[:, None] + tl.arange(0, ITEM_RANKS)[None, :]
    half = parts + SPLITS // 2 * MAX_RANKS
    total = tl.load(parts, mask=live[:, None], other=0.0)
    other = tl.load(half, mask=live[:, None], other=0.0)
    for split in tl.static_range(1, SPLITS // 2):
        total += tl.load(parts + split * MAX_RANKS, mask=live[:, None], other=0.0)
        other += tl.load(half + split * MAX_RANKS, mask=live[:, None], other=0.0)
    # A reduction, not a sum: the compiler would bring each of a sum's terms into the layout that the product wants.
    return tl.sum(tl.join(total, other), axis=2)


@triton.jit
def _product(v, b, acc):
    """acc + v b for float32 v. Where b is of a half type the product is done twice, so that v loses nothing.

    Exponents of float16 are too few for v, so there each row is taken from 1 on, in powers of two, and brought back.
    """
    if b.dtype == tl.float32:
        return tl.dot(v, b, acc, input_precision="ieee")
    if b.dtype == tl.float16:
        scale, inverse = _powers_of_two(tl.max(tl.abs(v), axis=1))
        return acc + _split_product(v * inverse[:, None], b, tl.zeros_like(acc)) * scale[:, None]
    return _split_product(v, b, acc)


@triton.jit
def _split_product(v, b, acc):
    high = v.to(b.dtype)
    low = (v - high.to(tl.float32)).to(b.dtype)
    return tl.dot(low, b, tl.dot(high, b, acc))


@triton.jit
def _powers_of_two(x):
    """The largest power of two within each float32, and its inverse, both in the range of normal numbers."""
    exponent = tl.minimum(tl.maximum((x.to(tl.int32, bitcast=True) >> 23) & 0xFF, 1), 253)
    return (exponent << 23).to(tl.float32, bitcast=True), ((254 - exponent) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _load_y(y, mask, ACCUMULATE: tl.constexpr):
    if ACCUMULATE:
        return tl.load(y, mask=mask, other=0.0).to(tl.float32)
    return tl.zeros(mask.shape, dtype=tl.float32)
