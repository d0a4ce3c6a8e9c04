"""SGMV's expand of long prompts in Triton. `punica_kernels.gpu.prompt_turns` says how programs take the tiles."""

from collections.abc import Sequence
from itertools import pairwise

import triton
import triton.language as tl
from torch import Tensor

from punica_kernels.gpu.expand_tile import ExpandSizes, load_tile
from punica_kernels.gpu.lora_constants import ROWS_IN_TURN
from punica_kernels.gpu.pdl import pdl_options, start_dependents
from punica_kernels.gpu.prompt_turns import first_turn, load_turns, row_tile_number
from punica_kernels.gpu.sgmv_config import ExpandConfig, row_block_n
from punica_kernels.gpu.sgmv_expand import expand_columns, expand_nothing, expand_row, output_block
from punica_kernels.integers import ceil_div
from punica_kernels.lora_table import LoraTable


def expand_prompts(
    y: Tensor,
    v: Tensor,
    b_pages: Tensor,
    out_offsets: Sequence[int],
    table: LoraTable,
    config: ExpandConfig,
    *,
    accumulate: bool,
    pdl: bool,
) -> None:
    """``punica_kernels.gpu.sgmv.expand`` for a table of long prompts; arguments fit each other."""
    shape, widths = table.shape, [end - start for start, end in pairwise(out_offsets)]
    ends = [*out_offsets[1:], out_offsets[-1], out_offsets[-1]]
    row_outputs = row_block_n(max(widths))
    sgmv_prompt_expand[(sum(ceil_div(width, config.block_n) for width in widths), config.tile_programs)](
        y,
        v,
        b_pages,
        table.words,
        y.stride(0),
        b_pages.stride(0),
        END_0=ends[0],
        END_1=ends[1],
        END_2=ends[2],
        TILE_WORDS=shape.tile_words,
        TILE_ROWS=shape.tile_rows,
        SLICES=len(widths),
        MAX_RANKS=shape.max_ranks,
        BLOCK_N=config.block_n,
        EVEN_N=all(width % config.block_n == 0 for width in widths),
        ROW_BLOCK_N=row_outputs,
        ROW_BLOCKS=sum(ceil_div(width, row_outputs) for width in widths),
        EVEN_ROWS=all(width % row_outputs == 0 for width in widths),
        ACCUMULATE=accumulate,
        maxnreg=config.max_registers,
        num_warps=config.num_warps,
        **pdl_options(y.device, wait=True, trigger=pdl),
    )


@triton.jit
def sgmv_prompt_expand(
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
    TILE_ROWS: tl.constexpr,
    SLICES: tl.constexpr,
    MAX_RANKS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    EVEN_N: tl.constexpr,
    ROW_BLOCK_N: tl.constexpr,
    ROW_BLOCKS: tl.constexpr,
    EVEN_ROWS: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    PDL_WAIT: tl.constexpr,
    PDL_TRIGGER: tl.constexpr,
):
    """y = v B, or y += v B, for every tile. Grid: blocks of each slice's outputs one after another, turns.

    A row has ROW_BLOCKS blocks of ROW_BLOCK_N outputs, which are whole in each slice if EVEN_ROWS.
    """
    start_dependents(PDL_TRIGGER)
    sizes: tl.constexpr = ExpandSizes(
        H_OUT=END_2,
        V_ROW=SLICES * MAX_RANKS,
        MAX_RANKS=MAX_RANKS,
        SPLIT_K=1,
        TILE_ROWS=TILE_ROWS,
        BLOCK_N=BLOCK_N,
        TILE_N=BLOCK_N,
        LOG2_BLOCKS=0,
        EVEN_N=EVEN_N,
        ACCUMULATE=ACCUMULATE,
        PDL_WAIT=PDL_WAIT,
    )
    row_sizes: tl.constexpr = ExpandSizes(
        H_OUT=END_2,
        V_ROW=SLICES * MAX_RANKS,
        MAX_RANKS=MAX_RANKS,
        SPLIT_K=1,
        TILE_ROWS=1,
        BLOCK_N=ROW_BLOCK_N,
        TILE_N=ROW_BLOCK_N,
        LOG2_BLOCKS=0,
        EVEN_N=EVEN_ROWS,
        ACCUMULATE=ACCUMULATE,
        PDL_WAIT=PDL_WAIT,
    )
    # A program without a turn need not wait for the kernels before: one with a tile of several rows does, and a launch
    # ends after all of its programs.
    turn = first_turn()
    tile, turns = load_tile(tiles + turn * TILE_WORDS), load_turns(tiles)
    while turn < turns.count:
        if turn < turns.wide_tiles:
            block = output_block(tl.program_id(0), END_0, END_1, END_2, BLOCK_N)
            _expand_wide(y, v, b, tile, block, y_stride, page_stride, sizes)
        else:
            item = tl.program_id(0)
            while item < ROW_BLOCKS * ROWS_IN_TURN:
                number = row_tile_number(turn, item, turns)
                if number < turns.num_tiles:
                    row = load_tile(tiles + number * TILE_WORDS)
                    block = output_block(item // ROWS_IN_TURN, END_0, END_1, END_2, ROW_BLOCK_N)
                    _expand_one(y, v, b, row, block, y_stride, page_stride, row_sizes)
                item += tl.num_programs(0)
        turn += tl.num_programs(1)
        if turn < turns.count:
            tile = load_tile(tiles + turn * TILE_WORDS)


@triton.jit
def _expand_wide(y, v, b, tile, block, y_stride, page_stride, sizes: tl.constexpr):
    """A block of outputs, as `output_block` has it, of a tile of several rows."""
    slice_id, n_start, n_end = block
    y += tile.first_row * y_stride + n_start
    if tile.num_rank_blocks == 0:
        ns = tl.arange(0, sizes.BLOCK_N)
        expand_nothing(y, ns, tile.num_rows, n_start + ns < n_end, y_stride, sizes)
    else:
        v += slice_id * sizes.MAX_RANKS + tile.first_row * sizes.V_ROW
        expand_columns(y, v, b + n_start, tile, n_start, n_end, y_stride, page_stride, sizes)


@triton.jit
def _expand_one(y, v, b, tile, block, y_stride, page_stride, sizes: tl.constexpr):
    """The same of a tile of one row."""
    slice_id, n_start, n_end = block
    ns = tl.arange(0, sizes.BLOCK_N)
    inside = n_start + ns < n_end
    y += tile.first_row * y_stride + n_start
    if tile.num_rank_blocks == 0:
        expand_nothing(y, ns, 1, inside, y_stride, sizes)
    else:
        v += slice_id * sizes.MAX_RANKS + tile.first_row * sizes.V_ROW
        expand_row(y, v, b + n_start, tile, ns, inside, page_stride, sizes)
