"""SGMV's expand of gate and up within their activation, in Triton.

With many rows the delta costs more to write and to read again than to compute, so the activation computes it from v and
B, which are small. `punica_kernels.lora_table` has the layout of the table, `punica_kernels.sgmv` the maths.
"""

import triton
import triton.language as tl
from torch import Tensor

from punica_kernels.checks import require_dense_rows, require_shape
from punica_kernels.gpu.activation import gated
from punica_kernels.gpu.expand_delta import row_delta, tile_delta
from punica_kernels.gpu.expand_products import sum_rows
from punica_kernels.gpu.expand_tile import ExpandSizes, load_tile
from punica_kernels.gpu.pdl import pdl_options, start_dependents
from punica_kernels.gpu.sgmv import check_b_pages, check_shrunk
from punica_kernels.gpu.sgmv_config import ExpandConfig, activation_config
from punica_kernels.gpu.sgmv_prompt_activation import activate_prompts
from punica_kernels.integers import ceil_div
from punica_kernels.low_rank import LowRankDelta


def expand_and_activate(
    out: Tensor, gate_up: Tensor, delta: LowRankDelta, *, gelu: bool, config: ExpandConfig | None = None
) -> None:
    """out = silu(gate) * up, or gelu's, where [gate, up] = gate_up + delta, for the rows of delta's table.

    The sum stays float32. out: [num_rows, I]; gate_up: [num_rows, 2 * I] of the same dtype. Raises ValueError, naming
    the argument, when the shapes do not fit.
    """
    v, b_pages, table = delta
    check_b_pages(b_pages)
    check_shrunk(v, 2, table)
    width = b_pages.shape[2] // 2
    require_shape("out", out, table.shape.max_rows, width)
    require_shape("gate_up", gate_up, table.shape.max_rows, 2 * width)
    require_dense_rows(out=out, gate_up=gate_up)
    config = config or activation_config(table.shape, width, b_pages.dtype)
    if table.shape.holds_long_prompts:
        activate_prompts(out, gate_up, delta, config, gelu=gelu)
        return
    sgmv_activation[(ceil_div(width, config.block_n), config.tile_programs)](
        out,
        gate_up,
        v,
        b_pages,
        table.words,
        table.shape.max_tiles,
        out.stride(0),
        gate_up.stride(0),
        b_pages.stride(0),
        WIDTH=width,
        GELU=gelu,
        TILE_WORDS=table.shape.tile_words,
        TILE_ROWS=table.shape.tile_rows,
        MAX_RANKS=table.shape.max_ranks,
        SPLIT_K=config.split_k,
        BLOCK_N=config.block_n,
        TILE_N=config.tile_n,
        LOG2_BLOCKS=config.log2_blocks,
        maxnreg=config.max_registers,
        num_warps=config.num_warps,
        **pdl_options(out.device, wait=False),
    )


@triton.jit(do_not_specialize=["max_tiles"])
def sgmv_activation(
    out,
    gate_up,
    v,
    b,
    tiles,
    max_tiles,
    out_stride,
    gate_up_stride,
    page_stride,
    WIDTH: tl.constexpr,
    GELU: tl.constexpr,
    TILE_WORDS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    MAX_RANKS: tl.constexpr,
    SPLIT_K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    TILE_N: tl.constexpr,
    LOG2_BLOCKS: tl.constexpr,
    PDL_WAIT: tl.constexpr,
    PDL_TRIGGER: tl.constexpr,
):
    """out = activation(gate + v B) * (up + v B), for every tile. Grid: blocks of outputs, programs that take tiles."""
    start_dependents(PDL_TRIGGER)
    sizes: tl.constexpr = ExpandSizes(
        H_OUT=2 * WIDTH,
        V_ROW=2 * SPLIT_K * MAX_RANKS,
        MAX_RANKS=MAX_RANKS,
        SPLIT_K=SPLIT_K,
        TILE_ROWS=TILE_ROWS,
        BLOCK_N=BLOCK_N,
        TILE_N=TILE_N,
        LOG2_BLOCKS=LOG2_BLOCKS,
        EVEN_N=WIDTH % BLOCK_N == 0,
        ACCUMULATE=True,
        PDL_WAIT=PDL_WAIT,
    )
    n_start = tl.program_id(0) * BLOCK_N
    out += n_start
    gate_up += n_start
    b += n_start
    width_left = WIDTH - n_start
    number = tl.program_id(1)
    tile = load_tile(tiles + number * TILE_WORDS)
    # Entries without rows come last.
    while (number < max_tiles) & (tile.num_rows > 0):
        number += tl.num_programs(1)
        # Loaded early, so that the next turn does not wait for it.
        following = load_tile(tiles + tl.minimum(number, max_tiles - 1) * TILE_WORDS)
        v_row = v + tile.first_row * sizes.V_ROW
        if tile.num_rows == 1:
            _activate_row(
                out + tile.first_row * out_stride,
                gate_up + tile.first_row * gate_up_stride,
                v_row,
                b,
                tile,
                width_left,
                page_stride,
                WIDTH,
                GELU,
                sizes,
            )
        else:
            row = tl.arange(0, TILE_ROWS)
            live = row < tile.num_rows
            out_rows = out + (tile.first_row + row[:, None]) * out_stride
            gate_up_rows = gate_up + (tile.first_row + row[:, None]) * gate_up_stride
            v_rows = v_row + row * sizes.V_ROW
            _activate_tile(out_rows, gate_up_rows, v_rows, b, tile, live, width_left, page_stride, WIDTH, GELU, sizes)
        tile = following


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
    """One row, on CUDA cores."""
    ns = tl.arange(0, sizes.BLOCK_N)
    inside = ns < width_left
    gate_up += ns
    b += ns
    gate = tl.load(gate_up, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + WIDTH, mask=inside, other=0.0).to(tl.float32)
    gate += row_delta(v, b, tile, inside, page_stride, sizes)
    up += row_delta(v + sizes.SPLIT_K * sizes.MAX_RANKS, b + WIDTH, tile, inside, page_stride, sizes)
    tl.store(out + ns, gated(gate, up, GELU, out.dtype.element_ty), mask=inside)


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
    """A tile of rows, on tensor cores, some columns at a time. Without LoRA its products are of zeros."""
    up_v = v + sizes.SPLIT_K * sizes.MAX_RANKS
    # The sums of the first rank block, most adapters' only one, serve all columns.
    has_lora = live & (tile.num_rank_blocks > 0)
    gate_sums, up_sums = sum_rows(v, has_lora, sizes), sum_rows(up_v, has_lora, sizes)
    for column_block in tl.range(tile.first_block, sizes.BLOCK_N // sizes.TILE_N, tile.block_step, num_stages=1):
        columns = column_block * sizes.TILE_N + tl.arange(0, sizes.TILE_N)
        inside = columns < width_left
        mask = live[:, None] & inside[None, :]
        gate = tl.load(gate_up + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        up = tl.load(gate_up + WIDTH + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        gate += tile_delta(v, gate_sums, b + columns, tile, live, inside, page_stride, sizes)
        up += tile_delta(up_v, up_sums, b + WIDTH + columns, tile, live, inside, page_stride, sizes)
        tl.store(out + columns[None, :], gated(gate, up, GELU, out.dtype.element_ty), mask=mask)
