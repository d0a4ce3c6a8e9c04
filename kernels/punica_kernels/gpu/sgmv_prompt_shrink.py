"""SGMV's shrink of long prompts in Triton. `punica_kernels.lora_table` has the layout of its table.

Tiles of many rows read x once for all slices, and A once for many rows. They are too few for a GPU, so h_in is split
among programs. The last of them to end adds up their partial sums in a fixed order: readers of v need not, and the
result is the same every time.
"""

import triton
import triton.language as tl
from torch import Tensor

from punica_kernels.gpu.lora_constants import BLOCK_ARRIVED, BLOCK_RANKS, PAGE_RANKS, RANK_BLOCK_WORDS
from punica_kernels.gpu.pdl import await_predecessors, pdl_options, start_dependents
from punica_kernels.gpu.prompt_shrink_config import prompt_shrink_config
from punica_kernels.gpu.sgmv_shrink import load_rank_block
from punica_kernels.lora_table import LoraTable


def shrink_prompts(v: Tensor, x: Tensor, a_pages: Tensor, table: LoraTable, *, pdl: bool) -> None:
    """``punica_kernels.gpu.sgmv.shrink`` for a table of long prompts; arguments fit each other."""
    _, num_slices, _, h_in = a_pages.shape
    shape = table.shape
    config = prompt_shrink_config(shape, h_in, num_slices, x.element_size())
    sgmv_prompt_shrink[(config.split_k, shape.max_tiles)](
        v,
        x,
        a_pages,
        table.words[shape.rank_blocks_start :],
        shape.max_rank_blocks,
        x.stride(0),
        a_pages.stride(0),
        shape.max_rows * num_slices * shape.max_ranks,
        H_IN=h_in,
        MAX_RANKS=shape.max_ranks,
        SLICES=num_slices,
        COLUMNS=config.columns,
        SPLIT_K=config.split_k,
        K_PER_SPLIT=config.k_per_split,
        TILE_ROWS=shape.tile_rows,
        BLOCK_K=config.block_k,
        NUM_STAGES=config.num_stages,
        num_warps=config.num_warps,
        **pdl_options(x.device, wait=pdl),
    )


@triton.jit(do_not_specialize=["max_rank_blocks"])
def sgmv_prompt_shrink(
    v,
    x,
    a,
    rank_blocks,
    max_rank_blocks,
    x_stride,
    page_stride,
    split_stride,
    H_IN: tl.constexpr,
    MAX_RANKS: tl.constexpr,
    SLICES: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPLIT_K: tl.constexpr,
    K_PER_SPLIT: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
    PDL_TRIGGER: tl.constexpr,
    PDL_WAIT: tl.constexpr,
):
    """v[row, slice, rank] = x A, for every rank block. Grid: splits, rank block programs.

    COLUMNS: the ranks of all slices, and none up to a power of two. v is the first of SPLIT_K partial sums, which are
    ``split_stride`` apart.
    """
    start_dependents(PDL_TRIGGER)
    await_predecessors(PDL_WAIT)
    column = tl.arange(0, COLUMNS)
    slice_id, rank = column // BLOCK_RANKS, column % BLOCK_RANKS
    is_rank = slice_id < SLICES
    a_columns = a + (slice_id * PAGE_RANKS + rank % PAGE_RANKS) * H_IN
    v_columns = v + slice_id * MAX_RANKS + rank
    tile_row = tl.arange(0, TILE_ROWS)
    block = tl.program_id(1)
    words = rank_blocks + block * RANK_BLOCK_WORDS
    first_row, rows, number, page_0, page_1 = load_rank_block(words, block < max_rank_blocks)
    while rows > 0:
        row, live = first_row.to(tl.int64) + tile_row, tile_row < rows
        page = tl.where(rank < PAGE_RANKS, page_0, page_1).to(tl.int64)
        acc = _multiply(
            x + row * x_stride,
            a_columns + page * page_stride,
            live,
            is_rank & (page >= 0),
            H_IN,
            K_PER_SPLIT,
            BLOCK_K,
            NUM_STAGES,
        )
        out = v_columns[None, :] + (row[:, None] * (SLICES * MAX_RANKS) + number * BLOCK_RANKS)
        _store_sums(out, acc, live[:, None] & is_rank[None, :], words + BLOCK_ARRIVED, split_stride, SPLIT_K)
        block += tl.num_programs(1)
        words = rank_blocks + block * RANK_BLOCK_WORDS
        first_row, rows, number, page_0, page_1 = load_rank_block(words, block < max_rank_blocks)


@triton.jit
def _multiply(
    x_rows,
    a_columns,
    live,
    used,
    H_IN: tl.constexpr,
    K_PER_SPLIT: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """[rows, columns]: this program's split of x A for the rows that are live and the columns of A that are used."""
    ks = tl.arange(0, BLOCK_K)
    x_tile = x_rows[:, None] + ks[None, :]
    a_tile = a_columns[None, :] + ks[:, None]
    acc = tl.zeros((live.shape[0], used.shape[0]), tl.float32)
    start = tl.program_id(0) * K_PER_SPLIT
    for k in tl.range(start, tl.minimum(start + K_PER_SPLIT, H_IN), BLOCK_K, num_stages=NUM_STAGES):
        x_mask, a_mask = live[:, None], used[None, :]
        if H_IN % BLOCK_K != 0:
            x_mask, a_mask = x_mask & (k + ks < H_IN)[None, :], a_mask & (k + ks < H_IN)[:, None]
        x = tl.load(x_tile + k, mask=x_mask, other=0.0)
        w = tl.load(a_tile + k, mask=a_mask, other=0.0)
        acc = tl.dot(x, w, acc, input_precision="ieee")
    return acc


@triton.jit
def _store_sums(out, acc, mask, arrived, split_stride, SPLIT_K: tl.constexpr):
    """Leaves a partial sum, and their sum in place of the first one if all of them are there."""
    tl.store(out + tl.program_id(0).to(tl.int64) * split_stride, acc, mask=mask)
    if SPLIT_K > 1:
        # All threads must have written before the count says so.
        tl.debug_barrier()
        if tl.atomic_add(arrived, 1, sem="acq_rel") == SPLIT_K - 1:
            tl.store(arrived, 0)
            total = tl.load(out, mask=mask, other=0.0)
            for split in tl.static_range(1, SPLIT_K):
                total += tl.load(out + split * split_stride, mask=mask, other=0.0)
            tl.store(out, total, mask=mask)
