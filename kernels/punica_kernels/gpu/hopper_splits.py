"""Results of the attention kernels for Hopper: whole rows, or splits of a context, which the last one merges."""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language import debug_barrier

from punica_kernels.gpu.attention_constants import FIRST_SPLIT, MIN_SCORE, SPLIT
from punica_kernels.gpu.work_tile import Heads


class HopperTile(NamedTuple):
    """A work tile and its kv head: where its words are, and what was read of them."""

    words: gl.tensor
    kv_head: gl.tensor
    first_row: gl.tensor
    num_rows: gl.tensor
    num_tokens: gl.tensor
    #: The last token that the first row sees.
    last_visible: gl.tensor
    num_splits: gl.tensor


@gluon.jit
def tile_rows(FIRST: gl.constexpr, NUM: gl.constexpr, num_rows, sizes: gl.constexpr, LAYOUT: gl.constexpr):
    """The query and the head of its group that each of NUM rows of a tile is, and whether there are such."""
    offs_m = FIRST + gl.arange(0, NUM, LAYOUT)
    query = offs_m // sizes.BLOCK_GROUP
    member = offs_m % sizes.BLOCK_GROUP
    return query, member, (query < num_rows) & (member < sizes.GROUP)


@gluon.jit
def write_rows(
    PART: gl.constexpr,
    PARTS: gl.constexpr,
    tile,
    sums,
    out,
    splits,
    sizes: gl.constexpr,
    MERGE_LAYOUT: gl.constexpr,
):
    """Writes the rows of one of a tile's PARTS, or leaves their split, and merges the splits if it is the last."""
    kv_head = tile.kv_head
    KV_HEADS: gl.constexpr = sizes.KV_HEADS
    ROWS: gl.constexpr = sums.acc.shape[0]
    FIRST: gl.constexpr = PART * ROWS
    BLOCK_M: gl.constexpr = PARTS * ROWS
    first = out.first + (kv_head * sizes.GROUP * out.head_stride + tile.first_row.to(gl.int64) * out.row_stride)
    target = Heads(first=first, row_stride=out.row_stride, head_stride=out.head_stride)
    if tile.num_splits == 1:
        _store_rows(FIRST, target, _quotient(sums), tile.num_rows, sizes)
    else:
        first_split = gl.load(tile.words + FIRST_SPLIT)
        place = (gl.load(tile.words + SPLIT) * KV_HEADS + kv_head) * BLOCK_M + FIRST
        _store_split(splits, place, sums)
        # Each part of a block counts alone: a block has two splits or more, and so as many counts.
        if _is_last_split(splits.counts + (first_split + PART) * KV_HEADS + kv_head, tile.num_splits):
            place = (first_split * KV_HEADS + kv_head) * BLOCK_M + FIRST
            HEAD_DIM: gl.constexpr = sums.acc.shape[1]
            result = _merged_splits(splits, place, tile.num_splits, KV_HEADS * BLOCK_M, ROWS, HEAD_DIM, MERGE_LAYOUT)
            _store_rows(FIRST, target, result, tile.num_rows, sizes)


@gluon.jit
def _store_rows(FIRST: gl.constexpr, target, result, num_rows, sizes: gl.constexpr):
    """Writes the rows that there are."""
    LAYOUT: gl.constexpr = result.type.layout
    query, member, is_row = tile_rows(FIRST, result.shape[0], num_rows, sizes, gl.SliceLayout(1, LAYOUT))
    column = gl.expand_dims(gl.arange(0, result.shape[1], gl.SliceLayout(0, LAYOUT)), 0)
    row = gl.expand_dims(query * target.row_stride + member * target.head_stride, 1)
    gl.store(target.first + row + column, result.to(target.first.dtype.element_ty), mask=gl.expand_dims(is_row, 1))


@gluon.jit
def _quotient(sums):
    """The weighted values over the sums of their weights."""
    l_i = gl.convert_layout(sums.l_i, gl.SliceLayout(1, sums.acc.type.layout))
    return sums.acc / gl.expand_dims(l_i, 1)


@gluon.jit
def _is_last_split(count, num_splits):
    """Counts this split, and says whether all of its block have been left. Then the count is zero again."""
    # All threads must have written before the count says so.
    debug_barrier()
    is_last = gl.atomic_add(count, 1, sem="acq_rel") == num_splits - 1
    if is_last:
        gl.store(count, 0)
    return is_last


@gluon.jit
def _store_split(splits, first_place, sums):
    """Leaves the sums of a split, those of unused rows too."""
    BLOCK_M: gl.constexpr = sums.acc.shape[0]
    HEAD_DIM: gl.constexpr = sums.acc.shape[1]
    LAYOUT: gl.constexpr = sums.acc.type.layout
    place = gl.expand_dims(first_place + gl.arange(0, BLOCK_M, gl.SliceLayout(1, LAYOUT)), 1)
    column = gl.expand_dims(gl.arange(0, HEAD_DIM, gl.SliceLayout(0, LAYOUT)), 0)
    gl.store(splits.acc + place * HEAD_DIM + column, sums.acc)
    place = first_place + gl.arange(0, BLOCK_M, sums.m_i.type.layout)
    gl.store(splits.m_i + place, sums.m_i)
    gl.store(splits.l_i + place, sums.l_i)


@gluon.jit
def _merged_splits(
    splits,
    first_place,
    num_splits,
    SPLIT_STRIDE: gl.constexpr,
    BLOCK_M: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    LAYOUT: gl.constexpr,
):
    """The rows of a block from its splits, always in the same order. Two at a time: their loads wait together."""
    ROWS: gl.constexpr = gl.SliceLayout(1, LAYOUT)
    column = gl.expand_dims(gl.arange(0, HEAD_DIM, gl.SliceLayout(0, LAYOUT)), 0)
    m_i = gl.full([BLOCK_M], MIN_SCORE, gl.float32, ROWS)
    l_i = gl.zeros([BLOCK_M], gl.float32, ROWS)
    acc = gl.zeros([BLOCK_M, HEAD_DIM], gl.float32, LAYOUT)
    for start in range(0, num_splits, 2):
        for number in gl.static_range(2):
            # Past the last split, that one is read again, and weighs nothing.
            split = gl.minimum(start + number, num_splits - 1)
            place = first_place + split * SPLIT_STRIDE + gl.arange(0, BLOCK_M, ROWS)
            # From the L2 cache, where other multiprocessors have written them.
            m_split = gl.load(splits.m_i + place, cache_modifier=".cg")
            l_split = gl.load(splits.l_i + place, cache_modifier=".cg")
            acc_split = gl.load(splits.acc + gl.expand_dims(place, 1) * HEAD_DIM + column, cache_modifier=".cg")
            m_new = gl.maximum(m_i, m_split)
            alpha = gl.exp2(m_i - m_new)
            beta = gl.where(start + number < num_splits, gl.exp2(m_split - m_new), 0.0)
            l_i = l_i * alpha + l_split * beta
            acc = acc * gl.expand_dims(alpha, 1) + acc_split * gl.expand_dims(beta, 1)
            m_i = m_new
    return acc / gl.expand_dims(l_i, 1)
