"""SGMV's expand in Triton. `punica_kernels.lora_table` has the layout of its table, `punica_kernels.sgmv` the maths.

It is launched while the shrink runs (programmatic dependent launch), prefetches its weights before it waits, and then
adds up the partial sums. Each program is one warp, so that the products of a column are summed within it.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from punica_kernels import lora_table
from punica_kernels.gpu.pdl import await_predecessors, start_dependents
from punica_kernels.lora_table import TileField

TILE_ROWS = tl.constexpr(lora_table.TILE_ROWS)
PAGE_RANKS = tl.constexpr(lora_table.PAGE_RANKS)
BLOCK_PAGES = tl.constexpr(lora_table.BLOCK_PAGES)
BLOCK_RANKS = tl.constexpr(lora_table.BLOCK_RANKS)
HEADER_WORDS = tl.constexpr(lora_table.TILE_HEADER_WORDS)
_FIRST_ROW = tl.constexpr(TileField.FIRST_ROW)
_NUM_ROWS = tl.constexpr(TileField.NUM_ROWS)
_NUM_RANK_BLOCKS = tl.constexpr(TileField.NUM_RANK_BLOCKS)
_FIRST_COLUMN_BLOCK = tl.constexpr(TileField.FIRST_COLUMN_BLOCK)
_COLUMN_BLOCK_STEP = tl.constexpr(TileField.COLUMN_BLOCK_STEP)


# The kernel builds these tuples by keyword: the compiler's cache does not see the order of fields.
class ExpandSizes(NamedTuple):
    """What the compiler knows of a program (`punica_kernels.gpu.sgmv_config.ExpandConfig`)."""

    H_OUT: tl.constexpr
    #: Numbers of a row of v: slices, splits and ranks.
    V_ROW: tl.constexpr
    MAX_RANKS: tl.constexpr
    SPLIT_K: tl.constexpr
    BLOCK_N: tl.constexpr
    TILE_N: tl.constexpr
    LOG2_BLOCKS: tl.constexpr
    #: Whether each slice's outputs are whole blocks.
    EVEN_N: tl.constexpr
    ACCUMULATE: tl.constexpr
    PDL_WAIT: tl.constexpr


class ExpandTile(NamedTuple):
    """The words of a tile in the table."""

    first_row: tl.tensor
    num_rows: tl.tensor
    #: 0 without LoRA, and less in a tile without rows.
    num_rank_blocks: tl.tensor
    first_block: tl.tensor
    block_step: tl.tensor
    #: Where its page numbers are, and the first two.
    pages: tl.tensor
    page_0: tl.tensor
    page_1: tl.tensor


@triton.jit(do_not_specialize=["max_tiles"])
def sgmv_expand(
    y,
    v,
    b,
    tiles,
    max_tiles,
    y_stride,
    page_stride,
    END_0: tl.constexpr,
    END_1: tl.constexpr,
    END_2: tl.constexpr,
    TILE_WORDS: tl.constexpr,
    SLICES: tl.constexpr,
    MAX_RANKS: tl.constexpr,
    SPLIT_K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    TILE_N: tl.constexpr,
    LOG2_BLOCKS: tl.constexpr,
    EVEN_N: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    IN_TURNS: tl.constexpr,
    PDL_WAIT: tl.constexpr,
    PDL_TRIGGER: tl.constexpr,
):
    """y = v B, or y += v B, for every tile. Grid: blocks of each slice's outputs one after another, tiles.

    IN_TURNS: with fewer programs than tiles, which take them in turns.
    """
    start_dependents(PDL_TRIGGER)
    sizes: tl.constexpr = ExpandSizes(
        H_OUT=END_2,
        V_ROW=SLICES * SPLIT_K * MAX_RANKS,
        MAX_RANKS=MAX_RANKS,
        SPLIT_K=SPLIT_K,
        BLOCK_N=BLOCK_N,
        TILE_N=TILE_N,
        LOG2_BLOCKS=LOG2_BLOCKS,
        EVEN_N=EVEN_N,
        ACCUMULATE=ACCUMULATE,
        PDL_WAIT=PDL_WAIT,
    )
    slice_id, n_start, n_end = _output_block(END_0, END_1, END_2, BLOCK_N)
    b += n_start
    number = tl.program_id(1)
    tile = _load_tile(tiles + number * TILE_WORDS)
    if IN_TURNS:
        # Entries without rows come last.
        while (number < max_tiles) & (tile.num_rows > 0):
            number += tl.num_programs(1)
            # Loaded early, so that the next turn does not wait for it.
            following = _load_tile(tiles + tl.minimum(number, max_tiles - 1) * TILE_WORDS)
            _expand_entry(y, v, b, tile, slice_id, n_start, n_end, y_stride, page_stride, sizes)
            tile = following
    else:
        _expand_entry(y, v, b, tile, slice_id, n_start, n_end, y_stride, page_stride, sizes)


@triton.jit
def _expand_entry(y, v, b, tile, slice_id, n_start, n_end, y_stride, page_stride, sizes: tl.constexpr):
    """A program's outputs of an entry of the table: nothing for one without rows."""
    ns = tl.arange(0, sizes.BLOCK_N)
    inside = n_start + ns < n_end
    y += tile.first_row * y_stride + n_start
    v += slice_id * (sizes.SPLIT_K * sizes.MAX_RANKS) + tile.first_row * sizes.V_ROW
    if tile.num_rank_blocks == 0:
        _expand_nothing(y, ns, tile.num_rows, inside, y_stride, sizes)
    elif tile.num_rows > 1:
        _expand_columns(y, v, b, tile, n_start, n_end, y_stride, page_stride, sizes)
    elif tile.num_rank_blocks > 0:
        _expand_row(y, v, b, tile, ns, inside, page_stride, sizes)


@triton.jit
def _load_tile(words):
    """The tile at `words`. All header words are loaded at once, to avoid dependent loads."""
    first_row = tl.load(words + _FIRST_ROW).to(tl.int64)
    num_rows = tl.load(words + _NUM_ROWS)
    num_rank_blocks = tl.load(words + _NUM_RANK_BLOCKS)
    first_block = tl.load(words + _FIRST_COLUMN_BLOCK)
    block_step = tl.load(words + _COLUMN_BLOCK_STEP)
    pages = words + HEADER_WORDS
    return ExpandTile(
        first_row=first_row,
        num_rows=num_rows,
        num_rank_blocks=num_rank_blocks,
        first_block=first_block,
        block_step=block_step,
        pages=pages,
        page_0=tl.load(pages),
        page_1=tl.load(pages + 1),
    )


@triton.jit
def _expand_nothing(y, ns, rows, inside, y_stride, sizes: tl.constexpr):
    """Rows without LoRA: zeros, where nothing is to be kept."""
    await_predecessors(sizes.PDL_WAIT)
    if not sizes.ACCUMULATE:
        for row in range(rows):
            tl.store(y + row * y_stride + ns, tl.zeros((sizes.BLOCK_N,), y.dtype.element_ty), mask=inside)


@triton.jit
def _expand_row(y_row, v_row, b, tile, ns, inside, page_stride, sizes: tl.constexpr):
    """One row, with the smallest power of two that covers its rank blocks: a block costs instructions even if empty."""
    num_rank_blocks = tile.num_rank_blocks
    for power in tl.static_range(sizes.LOG2_BLOCKS + 1):
        if num_rank_blocks > (1 << power) // 2 and (num_rank_blocks <= 1 << power or power == sizes.LOG2_BLOCKS):
            _expand_blocks(y_row + ns, v_row, b + ns, tile, inside, page_stride, 1 << power, sizes)


@triton.jit
def _expand_blocks(y_row, v_row, b, tile, inside, page_stride, BLOCKS: tl.constexpr, sizes: tl.constexpr):
    """One row, BLOCKS rank blocks at a time, with all their weights in flight."""
    num_rank_blocks = tile.num_rank_blocks
    w = _load_b(
        b, tile.page_0, tile.page_1, tile.pages, num_rank_blocks, page_stride, sizes.H_OUT, inside, BLOCKS, sizes.EVEN_N
    )
    await_predecessors(sizes.PDL_WAIT)
    acc = _load_y(y_row, inside, sizes.ACCUMULATE)
    acc += _row_product(v_row, w, num_rank_blocks, sizes.MAX_RANKS, sizes.SPLIT_K, BLOCKS)
    for block in tl.range(BLOCKS, num_rank_blocks, BLOCKS):
        w = _load_blocks(b, tile.pages, block, num_rank_blocks, page_stride, sizes.H_OUT, inside, BLOCKS, sizes.EVEN_N)
        v = v_row + block * BLOCK_RANKS
        acc += _row_product(v, w, num_rank_blocks - block, sizes.MAX_RANKS, sizes.SPLIT_K, BLOCKS)
    tl.store(y_row, acc.to(y_row.dtype.element_ty), mask=inside)


@triton.jit
def _expand_columns(y, v, b, tile, n_start, n_end, y_stride, page_stride, sizes: tl.constexpr):
    """A tile of rows, some columns at a time."""
    # Narrower than a row's block: a wider one would take more registers, and all programs have the most of any.
    for column_block in tl.range(tile.first_block, sizes.BLOCK_N // sizes.TILE_N, tile.block_step, num_stages=1):
        columns = column_block * sizes.TILE_N + tl.arange(0, sizes.TILE_N)
        _expand_tile(y + columns, v, b + columns, tile, n_start + columns < n_end, y_stride, page_stride, sizes)


@triton.jit
def _expand_tile(y_row, v_row, b, tile, inside, y_stride, page_stride, sizes: tl.constexpr):
    """A tile of rows, on tensor cores."""
    row = tl.arange(0, TILE_ROWS)
    live = row < tile.num_rows
    y_rows = y_row[None, :] + row[:, None] * y_stride
    v_rows = v_row + row * sizes.V_ROW
    mask = live[:, None] & inside[None, :]
    w = _load_b(b, tile.page_0, tile.page_1, tile.pages, 1, page_stride, sizes.H_OUT, inside, 1, sizes.EVEN_N)
    await_predecessors(sizes.PDL_WAIT)
    before = _load_y(y_rows, mask, sizes.ACCUMULATE)
    acc = tl.zeros(mask.shape, dtype=tl.float32)
    acc = _product(_sum_rows(v_rows, live, sizes.MAX_RANKS, sizes.SPLIT_K), w, acc)
    # One stage: the compiler's pipelining costs more in registers than it saves in time.
    for block in tl.range(1, tile.num_rank_blocks, num_stages=1):
        w = _load_blocks(b, tile.pages, block, block + 1, page_stride, sizes.H_OUT, inside, 1, sizes.EVEN_N)
        v = _sum_rows(v_rows + block * BLOCK_RANKS, live, sizes.MAX_RANKS, sizes.SPLIT_K)
        acc = _product(v, w, acc)
    tl.store(y_rows, (acc + before).to(y_row.dtype.element_ty), mask=mask)


@triton.jit
def _output_block(END_0, END_1, END_2, BLOCK_N: tl.constexpr):
    """(slice, first output, end of the slice's outputs) of this program; a slice starts where the last one ends."""
    block = tl.program_id(0)
    blocks_0 = tl.cdiv(END_0, BLOCK_N)
    blocks_1 = blocks_0 + tl.cdiv(END_1 - END_0, BLOCK_N)
    start = tl.where(block < blocks_0, 0, tl.where(block < blocks_1, END_0, END_1))
    first = tl.where(block < blocks_0, 0, tl.where(block < blocks_1, blocks_0, blocks_1))
    end = tl.where(block < blocks_0, END_0, tl.where(block < blocks_1, END_1, END_2))
    slice_id = (block >= blocks_0).to(tl.int32) + (block >= blocks_1).to(tl.int32)
    return slice_id, start + (block - first) * BLOCK_N, end


@triton.jit
def _load_b(
    b,
    page_0,
    page_1,
    pages,
    blocks_left,
    page_stride,
    H_OUT: tl.constexpr,
    inside,
    BLOCKS: tl.constexpr,
    EVEN_N: tl.constexpr,
):
    """[ranks, outputs] of BLOCKS rank blocks, whose page numbers are page_0, page_1 and then those at ``pages`` + 2.

    Zeros, without reading a byte, past the last page and the last block.
    """
    ranks = tl.arange(0, BLOCKS * BLOCK_RANKS)
    page = tl.where(ranks < PAGE_RANKS, page_0, page_1)
    for number in tl.static_range(BLOCK_PAGES, BLOCKS * BLOCK_PAGES):
        # Past a tile's last rank block lie other words of the table: their values do not matter.
        page = tl.where(ranks // PAGE_RANKS == number, tl.load(pages + number), page)
    used = ((page >= 0) & (ranks // BLOCK_RANKS < blocks_left))[:, None]
    rows = page.to(tl.int64) * page_stride + (ranks % PAGE_RANKS) * H_OUT
    if EVEN_N:
        return tl.load(b[None, :] + rows[:, None], mask=used, other=0.0)
    return tl.load(b[None, :] + rows[:, None], mask=used & inside[None, :], other=0.0)


@triton.jit
def _load_blocks(
    b,
    pages,
    block,
    num_rank_blocks,
    page_stride,
    H_OUT: tl.constexpr,
    inside,
    BLOCKS: tl.constexpr,
    EVEN_N: tl.constexpr,
):
    """`_load_b` from rank block `block` on."""
    pages += block * BLOCK_PAGES
    page_0, page_1 = tl.load(pages), tl.load(pages + 1)
    return _load_b(b, page_0, page_1, pages, num_rank_blocks - block, page_stride, H_OUT, inside, BLOCKS, EVEN_N)


@triton.jit
def _row_product(v, w, blocks_left, MAX_RANKS: tl.constexpr, SPLIT_K: tl.constexpr, BLOCKS: tl.constexpr):
    """[outputs]: a row's sums over the splits, times the weights of the blocks that are left of BLOCKS."""
    splits = tl.arange(0, SPLIT_K)[:, None]
    ranks = tl.arange(0, BLOCKS * BLOCK_RANKS)[None, :]
    mask = (splits >= 0) & (ranks // BLOCK_RANKS < blocks_left)
    partial = tl.load(v + splits * MAX_RANKS + ranks, mask=mask, other=0.0)
    return tl.sum(w.to(tl.float32) * tl.sum(partial, axis=0)[:, None], axis=0)


@triton.jit
def _sum_rows(v_rows, live, MAX_RANKS: tl.constexpr, SPLIT_K: tl.constexpr):
    """[rows, ranks]: the sums over the splits for a tile of rows."""
    partial = v_rows[:, None] + tl.arange(0, BLOCK_RANKS)[None, :]
    half = partial + SPLIT_K // 2 * MAX_RANKS
    acc = tl.load(partial, mask=live[:, None], other=0.0)
    other = tl.load(half, mask=live[:, None], other=0.0)
    for split in tl.static_range(1, SPLIT_K // 2):
        acc += tl.load(partial + split * MAX_RANKS, mask=live[:, None], other=0.0)
        other += tl.load(half + split * MAX_RANKS, mask=live[:, None], other=0.0)
    # A reduction instead of a sum: the compiler would convert each term of a sum to the product's layout.
    return tl.sum(tl.join(acc, other), axis=2)


@triton.jit
def _product(v, b, acc):
    """acc + v b for float32 v. If b is half precision, the product is done twice, so that v loses no precision.

    The range of float16 is too small for v, so each row is scaled by a power of two first, and scaled back afterwards.
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
