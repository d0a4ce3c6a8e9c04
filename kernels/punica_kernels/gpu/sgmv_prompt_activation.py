"""The activation that expands gate and up (`punica_kernels.gpu.sgmv_activation`) of long prompts.

`punica_kernels.gpu.prompt_turns` says how programs take the tiles.
"""

import triton
import triton.language as tl
from torch import Tensor

from punica_kernels.gpu.activation import gated
from punica_kernels.gpu.expand_delta import row_delta
from punica_kernels.gpu.expand_products import product, sum_rows
from punica_kernels.gpu.expand_tile import ExpandSizes, load_blocks, load_first_blocks, load_tile
from punica_kernels.gpu.lora_constants import BLOCK_RANKS, ROWS_IN_TURN
from punica_kernels.gpu.pdl import pdl_options, start_dependents
from punica_kernels.gpu.prompt_turns import first_turn, load_turns, row_tile_number
from punica_kernels.gpu.sgmv_config import ExpandConfig, row_block_n
from punica_kernels.integers import ceil_div
from punica_kernels.low_rank import LowRankDelta


def activate_prompts(out: Tensor, gate_up: Tensor, delta: LowRankDelta, config: ExpandConfig, *, gelu: bool) -> None:
    """``expand_and_activate`` for a table of long prompts; arguments fit each other."""
    v, b_pages, table = delta
    width = b_pages.shape[2] // 2
    row_outputs = row_block_n(width)
    sgmv_prompt_activation[(ceil_div(width, config.block_n), config.tile_programs)](
        out,
        gate_up,
        v,
        b_pages,
        table.words,
        out.stride(0),
        gate_up.stride(0),
        b_pages.stride(0),
        WIDTH=width,
        GELU=gelu,
        TILE_WORDS=table.shape.tile_words,
        TILE_ROWS=table.shape.tile_rows,
        MAX_RANKS=table.shape.max_ranks,
        BLOCK_N=config.block_n,
        ROW_BLOCK_N=row_outputs,
        ROW_BLOCKS=ceil_div(width, row_outputs),
        EVEN_ROWS=width % row_outputs == 0,
        maxnreg=config.max_registers,
        num_warps=config.num_warps,
        **pdl_options(out.device, wait=False),
    )


@triton.jit
def sgmv_prompt_activation(
    out,
    gate_up,
    v,
    b,
    tiles,
    out_stride,
    gate_up_stride,
    page_stride,
    WIDTH: tl.constexpr,
    GELU: tl.constexpr,
    TILE_WORDS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    MAX_RANKS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    ROW_BLOCK_N: tl.constexpr,
    ROW_BLOCKS: tl.constexpr,
    EVEN_ROWS: tl.constexpr,
    PDL_WAIT: tl.constexpr,
    PDL_TRIGGER: tl.constexpr,
):
    """out = activation(gate + v B) * (up + v B), for every tile. Grid: blocks of outputs, turns.

    A row has ROW_BLOCKS blocks of ROW_BLOCK_N outputs, all whole if EVEN_ROWS.
    """
    start_dependents(PDL_TRIGGER)
    sizes: tl.constexpr = ExpandSizes(
        H_OUT=2 * WIDTH,
        V_ROW=2 * MAX_RANKS,
        MAX_RANKS=MAX_RANKS,
        SPLIT_K=1,
        TILE_ROWS=TILE_ROWS,
        BLOCK_N=BLOCK_N,
        TILE_N=BLOCK_N,
        LOG2_BLOCKS=0,
        EVEN_N=WIDTH % BLOCK_N == 0,
        ACCUMULATE=True,
        PDL_WAIT=PDL_WAIT,
    )
    row_sizes: tl.constexpr = ExpandSizes(
        H_OUT=2 * WIDTH,
        V_ROW=2 * MAX_RANKS,
        MAX_RANKS=MAX_RANKS,
        SPLIT_K=1,
        TILE_ROWS=1,
        BLOCK_N=ROW_BLOCK_N,
        TILE_N=ROW_BLOCK_N,
        LOG2_BLOCKS=0,
        EVEN_N=EVEN_ROWS,
        ACCUMULATE=True,
        PDL_WAIT=PDL_WAIT,
    )
    turn = first_turn()
    tile, turns = load_tile(tiles + turn * TILE_WORDS), load_turns(tiles)
    while turn < turns.count:
        if turn < turns.wide_tiles:
            n = tl.program_id(0) * BLOCK_N
            row = tl.arange(0, TILE_ROWS)
            _activate_tile(
                out + n + (tile.first_row + row[:, None]) * out_stride,
                gate_up + n + (tile.first_row + row[:, None]) * gate_up_stride,
                v + (tile.first_row + row) * sizes.V_ROW,
                b + n,
                tile,
                row < tile.num_rows,
                WIDTH - n,
                page_stride,
                WIDTH,
                GELU,
                sizes,
            )
        else:
            item = tl.program_id(0)
            while item < ROW_BLOCKS * ROWS_IN_TURN:
                number = row_tile_number(turn, item, turns)
                if number < turns.num_tiles:
                    one = load_tile(tiles + number * TILE_WORDS)
                    n = item // ROWS_IN_TURN * row_sizes.BLOCK_N
                    _activate_row(
                        out + n + one.first_row * out_stride,
                        gate_up + n + one.first_row * gate_up_stride,
                        v + one.first_row * sizes.V_ROW,
                        b + n,
                        one,
                        WIDTH - n,
                        page_stride,
                        WIDTH,
                        GELU,
                        row_sizes,
                    )
                item += tl.num_programs(0)
        turn += tl.num_programs(1)
        if turn < turns.count:
            tile = load_tile(tiles + turn * TILE_WORDS)


@triton.jit
def _activate_row(
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
    """A row, on CUDA cores."""
    columns = tl.arange(0, sizes.BLOCK_N)
    inside = (columns < width_left) | sizes.EVEN_N
    gate_base = tl.load(gate_up + columns, mask=inside, other=0.0)
    up_base = tl.load(gate_up + WIDTH + columns, mask=inside, other=0.0)
    b += columns
    # One after the other: a thread has no registers for the weights of both.
    gate = gate_base.to(tl.float32) + row_delta(v, b, tile, inside, page_stride, sizes)
    up = up_base.to(tl.float32) + row_delta(v + sizes.MAX_RANKS, b + WIDTH, tile, inside, page_stride, sizes)
    tl.store(out + columns, gated(gate, up, GELU, out.dtype.element_ty), mask=inside)


@triton.jit
def _activate_tile(
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
    """A tile of rows, all columns at once: everything but more rank blocks is requested before it is used."""
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
