"""SGMV's expand in Triton. `punica_kernels.lora_table` has the layout of its table, `punica_kernels.sgmv` the maths.

It is launched while the shrink runs (programmatic dependent launch), prefetches its weights before it waits, and then
adds up the partial sums. Each program is one warp, so that the products of a column are summed within it. Long prompts
have a kernel of their own (`punica_kernels.gpu.sgmv_prompt_expand`).
"""

import triton
import triton.language as tl

from punica_kernels.gpu.expand_products import product, row_product, sum_rows
from punica_kernels.gpu.expand_tile import ExpandSizes, load_blocks, load_first_blocks, load_tile
from punica_kernels.gpu.lora_constants import BLOCK_RANKS
from punica_kernels.gpu.pdl import await_predecessors, start_dependents


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
    TILE_ROWS: tl.constexpr,
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
        TILE_ROWS=TILE_ROWS,
        BLOCK_N=BLOCK_N,
        TILE_N=TILE_N,
        LOG2_BLOCKS=LOG2_BLOCKS,
        EVEN_N=EVEN_N,
        ACCUMULATE=ACCUMULATE,
        PDL_WAIT=PDL_WAIT,
    )
    slice_id, n_start, n_end = output_block(tl.program_id(0), END_0, END_1, END_2, BLOCK_N)
    b += n_start
    number = tl.program_id(1)
    tile = load_tile(tiles + number * TILE_WORDS)
    if IN_TURNS:
        # Entries without rows come last.
        while (number < max_tiles) & (tile.num_rows > 0):
            number += tl.num_programs(1)
            # Loaded early, so that the next turn does not wait for it.
            following = load_tile(tiles + tl.minimum(number, max_tiles - 1) * TILE_WORDS)
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
        expand_nothing(y, ns, tile.num_rows, inside, y_stride, sizes)
    elif tile.num_rows > 1:
        expand_columns(y, v, b, tile, n_start, n_end, y_stride, page_stride, sizes)
    elif tile.num_rank_blocks > 0:
        expand_row(y, v, b, tile, ns, inside, page_stride, sizes)


@triton.jit
def expand_nothing(y, ns, rows, inside, y_stride, sizes: tl.constexpr):
    """Rows without LoRA: zeros, where nothing is to be kept."""
    await_predecessors(sizes.PDL_WAIT)
    if not sizes.ACCUMULATE:
        for row in range(rows):
            tl.store(y + row * y_stride + ns, tl.zeros((sizes.BLOCK_N,), y.dtype.element_ty), mask=inside)


@triton.jit
def expand_row(y_row, v_row, b, tile, ns, inside, page_stride, sizes: tl.constexpr):
    """One row, with the smallest power of two that covers its rank blocks: a block costs instructions even if empty."""
    num_rank_blocks = tile.num_rank_blocks
    for power in tl.static_range(sizes.LOG2_BLOCKS + 1):
        if num_rank_blocks > (1 << power) // 2 and (num_rank_blocks <= 1 << power or power == sizes.LOG2_BLOCKS):
            _expand_blocks(y_row + ns, v_row, b + ns, tile, inside, page_stride, 1 << power, sizes)


@triton.jit
def _expand_blocks(y_row, v_row, b, tile, inside, page_stride, BLOCKS: tl.constexpr, sizes: tl.constexpr):
    """One row, BLOCKS rank blocks at a time, with all their weights in flight."""
    num_rank_blocks = tile.num_rank_blocks
    w = load_first_blocks(b, tile, num_rank_blocks, page_stride, inside, BLOCKS, sizes)
    await_predecessors(sizes.PDL_WAIT)
    acc = _load_y(y_row, inside, sizes.ACCUMULATE)
    acc += row_product(v_row, w, num_rank_blocks, BLOCKS, sizes)
    for block in tl.range(BLOCKS, num_rank_blocks, BLOCKS):
        w = load_blocks(b, tile, block, num_rank_blocks, page_stride, inside, BLOCKS, sizes)
        v = v_row + block * BLOCK_RANKS
        acc += row_product(v, w, num_rank_blocks - block, BLOCKS, sizes)
    tl.store(y_row, acc.to(y_row.dtype.element_ty), mask=inside)


@triton.jit
def expand_columns(y, v, b, tile, n_start, n_end, y_stride, page_stride, sizes: tl.constexpr):
    """A tile of rows, some columns at a time."""
    # Narrower than a row's block: a wider one would take more registers, and all programs have the most of any.
    for column_block in tl.range(tile.first_block, sizes.BLOCK_N // sizes.TILE_N, tile.block_step, num_stages=1):
        columns = column_block * sizes.TILE_N + tl.arange(0, sizes.TILE_N)
        _expand_tile(y + columns, v, b + columns, tile, n_start + columns < n_end, y_stride, page_stride, sizes)


@triton.jit
def _expand_tile(y_row, v_row, b, tile, inside, y_stride, page_stride, sizes: tl.constexpr):
    """A tile of rows, on tensor cores."""
    row = tl.arange(0, sizes.TILE_ROWS)
    live = row < tile.num_rows
    y_rows = y_row[None, :] + row[:, None] * y_stride
    v_rows = v_row + row * sizes.V_ROW
    mask = live[:, None] & inside[None, :]
    w = load_first_blocks(b, tile, 1, page_stride, inside, 1, sizes)
    await_predecessors(sizes.PDL_WAIT)
    before = _load_y(y_rows, mask, sizes.ACCUMULATE)
    acc = tl.zeros(mask.shape, dtype=tl.float32)
    acc = product(sum_rows(v_rows, live, sizes), w, acc)
    # One stage: the compiler's pipelining costs more in registers than it saves in time.
    for block in tl.range(1, tile.num_rank_blocks, num_stages=1):
        w = load_blocks(b, tile, block, block + 1, page_stride, inside, 1, sizes)
        v = sum_rows(v_rows + block * BLOCK_RANKS, live, sizes)
        acc = product(v, w, acc)
    tl.store(y_rows, (acc + before).to(y_row.dtype.element_ty), mask=mask)


@triton.jit
def output_block(block, END_0, END_1, END_2, BLOCK_N: tl.constexpr):
    """(slice, first output, end of the slice's outputs) of a block; a slice starts where the last one ends."""
    blocks_0 = tl.cdiv(END_0, BLOCK_N)
    blocks_1 = blocks_0 + tl.cdiv(END_1 - END_0, BLOCK_N)
    start = tl.where(block < blocks_0, 0, tl.where(block < blocks_1, END_0, END_1))
    first = tl.where(block < blocks_0, 0, tl.where(block < blocks_1, blocks_0, blocks_1))
    end = tl.where(block < blocks_0, END_0, tl.where(block < blocks_1, END_1, END_2))
    slice_id = (block >= blocks_0).to(tl.int32) + (block >= blocks_1).to(tl.int32)
    return slice_id, start + (block - first) * BLOCK_N, end


@triton.jit
def _load_y(y, mask, ACCUMULATE: tl.constexpr):
    if ACCUMULATE:
        return tl.load(y, mask=mask, other=0.0).to(tl.float32)
    return tl.zeros(mask.shape, dtype=tl.float32)
