"""Results of paged attention: whole rows, or splits of a context, which the program that ends last merges."""

from typing import NamedTuple

import triton
import triton.language as tl

from punica_kernels.gpu.attention_constants import LIST_STRIDE, LISTED_ROW, LISTED_SPLITS, MIN_SCORE
from punica_kernels.gpu.online_softmax import Sums
from punica_kernels.gpu.work_tile import columns, head_cells, tile_rows


class Splits(NamedTuple):
    """The workspace: the sums of each split and kv head, and how many programs of its block have left theirs."""

    acc: tl.tensor
    m_i: tl.tensor
    l_i: tl.tensor
    counts: tl.tensor


@triton.jit
def write_rows(out, row, row_list, splits, sums, kv_head, tile, rows, sizes: tl.constexpr):
    """Writes the results of a tile's rows, or leaves their split, and merges those of the block if it is the last.

    row: int64 [BLOCK_M, 1], the query row that each row is.
    """
    if tile.num_splits == 1:
        result = (sums.acc / sums.l_i[:, None]).to(out.first.dtype.element_ty)
        tl.store(head_cells(out, row, kv_head, rows, sizes), result, mask=rows.mask)
    else:
        _store_split(out, row_list, splits, sums, kv_head, tile, rows, sizes)


@triton.jit
def _store_split(out, row_list, splits, sums, kv_head, tile, rows, sizes: tl.constexpr):
    """Leaves the sums in the workspace, and merges the block's if all of them are there."""
    place = (tile.split * sizes.KV_HEADS + kv_head) * sizes.BLOCK_M + tl.arange(0, sizes.BLOCK_M)
    if sizes.SHARES_PREFIXES:
        place += (tile.first_row - tile.block_first_row) * sizes.BLOCK_GROUP
    tl.store(splits.acc + place[:, None] * sizes.HEAD_DIM + columns(sizes), sums.acc, mask=rows.mask)
    tl.store(splits.m_i + place, sums.m_i, mask=rows.is_row)
    tl.store(splits.l_i + place, sums.l_i, mask=rows.is_row)
    # All threads must have written before the count says so.
    tl.debug_barrier()
    count = splits.counts + tile.first_split * sizes.KV_HEADS + kv_head
    if tl.atomic_add(count, 1, sem="acq_rel") == tile.num_splits - 1:
        tl.store(count, 0)
        _merge_splits(out, row_list, splits, kv_head, tile, sizes)


@triton.jit
def _merge_splits(out, row_list, splits, kv_head, tile, sizes: tl.constexpr):
    """The rows of a block from their splits, always in the same order, MERGED_SPLITS at a time."""
    heads = out.first if sizes.SHARES_PREFIXES else out.first + tile.first_row.to(tl.int64) * out.row_stride
    heads += kv_head * sizes.GROUP * out.head_stride
    words = row_list + tile.block_first_row * LIST_STRIDE if sizes.SHARES_PREFIXES else row_list
    first_place = (tile.first_split * sizes.KV_HEADS + kv_head) * sizes.BLOCK_M
    rows = tile_rows(tile.block_num_rows, sizes.LIVE_M, sizes)
    if sizes.SHARES_PREFIXES:
        # Listed rows may lie anywhere, and each has its own number of splits.
        words += rows.query * LIST_STRIDE
        row = tl.load(words + LISTED_ROW, mask=rows.is_row, other=0).to(tl.int64)
        row_splits = tl.load(words + LISTED_SPLITS, mask=rows.is_row, other=0)
        num_splits = tl.max(row_splits)
    else:
        row = rows.query
        row_splits = tile.num_splits
        num_splits = row_splits
    # Rows that are not there have a sum of 1, so that nothing is divided by zero.
    sums = Sums(
        m_i=tl.full((sizes.LIVE_M,), MIN_SCORE, dtype=tl.float32),
        l_i=tl.where(rows.is_row, 0.0, 1.0),
        acc=tl.zeros((sizes.LIVE_M, sizes.BLOCK_D), dtype=tl.float32),
    )
    for start in range(0, num_splits, sizes.MERGED_SPLITS):
        for number in tl.static_range(sizes.MERGED_SPLITS):
            split = start + number
            sums = _add_split(sums, _load_split(splits, first_place, split, split < row_splits, rows, sizes))
    result = (sums.acc / sums.l_i[:, None]).to(out.first.dtype.element_ty)
    cells = heads + row * out.row_stride + rows.member * out.head_stride
    tl.store(cells[:, None] + columns(sizes), result, mask=rows.mask)


@triton.jit
def _load_split(splits, first_place, split, is_split, rows, sizes: tl.constexpr):
    """The sums of one split, from the L2 cache, where other multiprocessors have written them."""
    place = first_place + split * (sizes.KV_HEADS * sizes.BLOCK_M) + tl.arange(0, sizes.LIVE_M)
    m_split = tl.load(splits.m_i + place, mask=rows.is_row & is_split, other=MIN_SCORE, cache_modifier=".cg")
    l_split = tl.load(splits.l_i + place, mask=rows.is_row & is_split, other=0.0, cache_modifier=".cg")
    cells = splits.acc + place[:, None] * sizes.HEAD_DIM + columns(sizes)
    is_cell = rows.mask & (is_split[:, None] if sizes.SHARES_PREFIXES else is_split)
    return Sums(m_i=m_split, l_i=l_split, acc=tl.load(cells, mask=is_cell, other=0.0, cache_modifier=".cg"))


@triton.jit
def _add_split(sums, more):
    """The sums of both."""
    m_new = tl.maximum(sums.m_i, more.m_i)
    alpha = tl.exp2(sums.m_i - m_new)
    beta = tl.exp2(more.m_i - m_new)
    l_i = sums.l_i * alpha + more.l_i * beta
    acc = sums.acc * alpha[:, None] + more.acc * beta[:, None]
    return Sums(m_i=m_new, l_i=l_i, acc=acc)
