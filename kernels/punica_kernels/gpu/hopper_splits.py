"""Results of the attention kernels for Hopper: whole rows, or splits of a context, which the last one merges."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language import debug_barrier

from punica_kernels.gpu.attention_constants import FIRST_SPLIT, MIN_SCORE, SPLIT


@gluon.jit
def tile_rows(
    FIRST: gl.constexpr,
    NUM: gl.constexpr,
    num_rows,
    GROUP: gl.constexpr,
    BLOCK_GROUP: gl.constexpr,
    LAYOUT: gl.constexpr,
):
    """The query and the head of its group that each of NUM rows of a tile is, and whether there are such."""
    offs_m = FIRST + gl.arange(0, NUM, LAYOUT)
    query = offs_m // BLOCK_GROUP
    member = offs_m % BLOCK_GROUP
    return query, member, (query < num_rows) & (member < GROUP)


@gluon.jit
def write_rows(
    PART: gl.constexpr,
    PARTS: gl.constexpr,
    tile,
    sums,
    target,
    splits,
    KV_HEADS: gl.constexpr,
    GROUP: gl.constexpr,
    BLOCK_GROUP: gl.constexpr,
    MERGE_LAYOUT: gl.constexpr,
):
    """Writes the rows of one of a tile's PARTS, or leaves their split, and merges the splits if it is the last."""
    words, first_row, kv_head, num_rows, num_splits = tile
    out, out_row_stride, out_head_stride = target
    split_acc, split_m, split_l, counts = splits
    ROWS: gl.constexpr = sums[0].shape[0]
    FIRST: gl.constexpr = PART * ROWS
    BLOCK_M: gl.constexpr = PARTS * ROWS
    out += kv_head * GROUP * out_head_stride + first_row.to(gl.int64) * out_row_stride
    strides = (out_row_stride, out_head_stride)
    if num_splits == 1:
        _store_rows(FIRST, out, _quotient(sums), num_rows, strides, GROUP, BLOCK_GROUP)
    else:
        first_split = gl.load(words + FIRST_SPLIT)
        place = (gl.load(words + SPLIT) * KV_HEADS + kv_head) * BLOCK_M + FIRST
        _store_split(split_acc, split_m, split_l, place, sums)
        # Each part of a block counts alone: a block has two splits or more, and so as many counts.
        if _is_last_split(counts + (first_split + PART) * KV_HEADS + kv_head, num_splits):
            found = (split_acc, split_m, split_l, (first_split * KV_HEADS + kv_head) * BLOCK_M + FIRST, num_splits)
            result = _merged_splits(found, KV_HEADS * BLOCK_M, ROWS, sums[0].shape[1], MERGE_LAYOUT)
            _store_rows(FIRST, out, result, num_rows, strides, GROUP, BLOCK_GROUP)


@gluon.jit
def _store_rows(FIRST: gl.constexpr, out, result, num_rows, strides, GROUP: gl.constexpr, BLOCK_GROUP: gl.constexpr):
    """Writes the rows that there are."""
    LAYOUT: gl.constexpr = result.type.layout
    query, member, is_row = tile_rows(FIRST, result.shape[0], num_rows, GROUP, BLOCK_GROUP, gl.SliceLayout(1, LAYOUT))
    column = gl.expand_dims(gl.arange(0, result.shape[1], gl.SliceLayout(0, LAYOUT)), 0)
    cells = out + gl.expand_dims(query * strides[0] + member * strides[1], 1) + column
    gl.store(cells, result.to(out.dtype.element_ty), mask=gl.expand_dims(is_row, 1))


@gluon.jit
def _quotient(sums):
    """The weighted values over the sums of their weights."""
    acc, _, l_i = sums
    return acc / gl.expand_dims(gl.convert_layout(l_i, gl.SliceLayout(1, acc.type.layout)), 1)


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
def _store_split(split_acc, split_m, split_l, first_place, sums):
    """Leaves the sums of a split, those of unused rows too."""
    acc, m_i, l_i = sums
    BLOCK_M: gl.constexpr = acc.shape[0]
    LAYOUT: gl.constexpr = acc.type.layout
    place = gl.expand_dims(first_place + gl.arange(0, BLOCK_M, gl.SliceLayout(1, LAYOUT)), 1)
    column = gl.expand_dims(gl.arange(0, acc.shape[1], gl.SliceLayout(0, LAYOUT)), 0)
    gl.store(split_acc + place * acc.shape[1] + column, acc)
    place = first_place + gl.arange(0, BLOCK_M, m_i.type.layout)
    gl.store(split_m + place, m_i)
    gl.store(split_l + place, l_i)


@gluon.jit
def _merged_splits(
    splits, SPLIT_STRIDE: gl.constexpr, BLOCK_M: gl.constexpr, HEAD_DIM: gl.constexpr, LAYOUT: gl.constexpr
):
    """The rows of a block from its splits, always in the same order. Two at a time: their loads wait together."""
    split_acc, split_m, split_l, first_place, num_splits = splits
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
            m_split = gl.load(split_m + place, cache_modifier=".cg")
            l_split = gl.load(split_l + place, cache_modifier=".cg")
            acc_split = gl.load(split_acc + gl.expand_dims(place, 1) * HEAD_DIM + column, cache_modifier=".cg")
            m_new = gl.maximum(m_i, m_split)
            alpha = gl.exp2(m_i - m_new)
            beta = gl.where(start + number < num_splits, gl.exp2(m_split - m_new), 0.0)
            l_i = l_i * alpha + l_split * beta
            acc = acc * gl.expand_dims(alpha, 1) + acc_split * gl.expand_dims(beta, 1)
            m_i = m_new
    return acc / gl.expand_dims(l_i, 1)
