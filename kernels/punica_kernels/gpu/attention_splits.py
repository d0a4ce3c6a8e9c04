"""The splits of a context in paged attention: a program leaves its part, and the last one merges all of them."""

import triton
import triton.language as tl

from punica_kernels.gpu.attention_constants import LIST_STRIDE, LISTED_ROW, LISTED_SPLITS, MIN_SCORE


@triton.jit
def store_split(
    out,
    row_list,
    splits,
    sums,
    tile,
    block,
    masks,
    out_strides,
    KV_HEADS: tl.constexpr,
    sizes: tl.constexpr,
    SHARES_PREFIXES: tl.constexpr,
):
    """Leaves the sums in the workspace, and merges the block's if all of them are there."""
    split_acc, split_m, split_l, counts = splits
    m_i, l_i, acc = sums
    kv_head, first_row, split, first_split, num_splits = tile
    block_first_row, block_num_rows = block
    is_row, q_mask = masks
    BLOCK_M: tl.constexpr = sizes[0]
    HEAD_DIM: tl.constexpr = sizes[1]
    GROUP: tl.constexpr = sizes[2]
    BLOCK_GROUP: tl.constexpr = sizes[3]
    BLOCK_D: tl.constexpr = sizes[5]
    offs_d = tl.arange(0, BLOCK_D)[None, :]
    place = (split * KV_HEADS + kv_head) * BLOCK_M + tl.arange(0, BLOCK_M)
    if SHARES_PREFIXES:
        place += (first_row - block_first_row) * BLOCK_GROUP
    tl.store(split_acc + place[:, None] * HEAD_DIM + offs_d, acc, mask=q_mask)
    tl.store(split_m + place, m_i, mask=is_row)
    tl.store(split_l + place, l_i, mask=is_row)
    # All threads must have written before the count says so.
    tl.debug_barrier()
    count = counts + first_split * KV_HEADS + kv_head
    if tl.atomic_add(count, 1, sem="acq_rel") == num_splits - 1:
        tl.store(count, 0)
        rows = out if SHARES_PREFIXES else out + first_row.to(tl.int64) * out_strides[0]
        _merge_splits(
            rows + kv_head * GROUP * out_strides[1],
            row_list + block_first_row * LIST_STRIDE if SHARES_PREFIXES else row_list,
            (split_acc, split_m, split_l),
            (first_split * KV_HEADS + kv_head) * BLOCK_M,
            num_splits,
            block_num_rows,
            out_strides,
            KV_HEADS * BLOCK_M,
            sizes,
            SHARES_PREFIXES,
        )


@triton.jit
def _merge_splits(
    out,
    row_list,
    splits,
    first_place,
    num_splits,
    num_rows,
    out_strides,
    SPLIT_STRIDE: tl.constexpr,
    sizes: tl.constexpr,
    SHARES_PREFIXES: tl.constexpr,
):
    """The rows of `out` from their splits, MERGED_SPLITS at a time. Listed rows may lie anywhere, and each has its own
    number of splits.
    """
    split_acc, split_m, split_l = splits
    HEAD_DIM: tl.constexpr = sizes[1]
    GROUP: tl.constexpr = sizes[2]
    BLOCK_GROUP: tl.constexpr = sizes[3]
    LIVE_M: tl.constexpr = sizes[4]
    BLOCK_D: tl.constexpr = sizes[5]
    MERGED_SPLITS: tl.constexpr = sizes[6]
    offs_m = tl.arange(0, LIVE_M)
    offs_d = tl.arange(0, BLOCK_D)[None, :]
    query = offs_m // BLOCK_GROUP
    member = offs_m % BLOCK_GROUP
    is_row = (query < num_rows) & (member < GROUP)
    mask = is_row[:, None] & (offs_d < HEAD_DIM)
    if SHARES_PREFIXES:
        row = tl.load(row_list + query * LIST_STRIDE + LISTED_ROW, mask=is_row, other=0).to(tl.int64)
        row_splits = tl.load(row_list + query * LIST_STRIDE + LISTED_SPLITS, mask=is_row, other=0)
        num_splits = tl.max(row_splits)
    else:
        row = query
        row_splits = num_splits
    m_i = tl.full((LIVE_M,), MIN_SCORE, dtype=tl.float32)
    l_i = tl.where(is_row, 0.0, 1.0)
    acc = tl.zeros((LIVE_M, BLOCK_D), dtype=tl.float32)
    for start in range(0, num_splits, MERGED_SPLITS):
        for number in tl.static_range(MERGED_SPLITS):
            split = start + number
            is_split = split < row_splits
            place = first_place + split * SPLIT_STRIDE + offs_m
            # From the L2 cache, where other multiprocessors have written them.
            m_split = tl.load(split_m + place, mask=is_row & is_split, other=MIN_SCORE, cache_modifier=".cg")
            l_split = tl.load(split_l + place, mask=is_row & is_split, other=0.0, cache_modifier=".cg")
            cells = split_acc + place[:, None] * HEAD_DIM + offs_d
            is_cell = mask & (is_split[:, None] if SHARES_PREFIXES else is_split)
            acc_split = tl.load(cells, mask=is_cell, other=0.0, cache_modifier=".cg")
            m_new = tl.maximum(m_i, m_split)
            alpha = tl.exp2(m_i - m_new)
            beta = tl.exp2(m_split - m_new)
            l_i = l_i * alpha + l_split * beta
            acc = acc * alpha[:, None] + acc_split * beta[:, None]
            m_i = m_new
    result = (acc / l_i[:, None]).to(out.dtype.element_ty)
    rows = out + row * out_strides[0] + member * out_strides[1]
    tl.store(rows[:, None] + offs_d, result, mask=mask)
