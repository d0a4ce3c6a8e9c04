"""Paged attention in Triton, with the online softmax of FlashAttention (Dao et al., 2022).

One program takes one work tile: BLOCK_M rows (query rows times the query heads that share one kv head) and one split of
their context. The program of a split context that ends last merges the splits, always in the same order.

In a table with shared prefixes (SHARES_PREFIXES) the rows of a tile are places in the table's list of rows, each the
only row of its request. The program of a block that ends last, whether over the prefix or over one row's own context,
merges all rows of the block, each row's splits in the order of its context.
`punica_kernels.paged_attention` checks the arguments and documents the shapes.
"""

import math

import triton
import triton.language as tl
from torch import Tensor

from punica_kernels.attention_tiles import AttentionShape, AttentionWorkspace
from punica_kernels.gpu.attention_config import block_d, hopper_config, is_for_hopper, triton_config
from punica_kernels.gpu.attention_constants import (
    BLOCK_FIRST_ROW,
    BLOCK_NUM_ROWS,
    FIRST_PAGE,
    FIRST_ROW,
    FIRST_SPLIT,
    LAST_VISIBLE,
    LIST_STRIDE,
    LISTED_ROW,
    MIN_SCORE,
    NUM_ROWS,
    NUM_SPLITS,
    NUM_TOKENS,
    SPLIT,
)
from punica_kernels.gpu.attention_splits import store_split
from punica_kernels.gpu.launch import pdl_options

_LOG2_E = math.log2(math.e)


def paged_attention(
    out: Tensor,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    pages: Tensor,
    tiles: Tensor,
    shape: AttentionShape,
    workspace: AttentionWorkspace,
    scale: float,
    soft_cap: float | None = None,
    *,
    pdl: bool = False,
) -> None:
    """out = softmax(q k^T * scale) v over each row's own request, in one launch."""
    head_dim, page_size = q.shape[2], keys.shape[1]
    tensors = (out, q, keys, values, pages, tiles, workspace.acc, *workspace.m_and_l, workspace.counts)
    scales = (
        scale * _LOG2_E if soft_cap is None else scale / soft_cap,
        None if soft_cap is None else soft_cap * _LOG2_E,
    )
    row_strides = (*out.stride()[:2], *q.stride()[:2])
    sizes = {
        "TILE_WORDS": shape.tile_words,
        "HEAD_DIM": head_dim,
        "PAGE_SIZE": page_size,
        "KV_HEADS": shape.kv_heads,
        "GROUP": shape.heads // shape.kv_heads,
        "BLOCK_GROUP": shape.block_group,
        "BLOCK_M": shape.block_m,
        "WINDOW": shape.window or 0,
        **pdl_options(q.device, wait=pdl),
    }
    grid = (shape.kv_heads, shape.max_tiles)
    if is_for_hopper(q, keys, values, shape.block_m):
        from punica_kernels.gpu.hopper_attention import hopper_attention

        cache_strides = (stride // head_dim for stride in keys.stride()[:3])
        blocks = hopper_config(shape)._asdict()
        hopper_attention[grid](*tensors, *scales, *row_strides, *cache_strides, **sizes, **blocks)
        return
    blocks = triton_config(shape, head_dim, q.element_size())._asdict()
    _paged_attention[grid](
        *tensors,
        *scales,
        *row_strides,
        *keys.stride()[:3],
        *values.stride()[:3],
        **sizes,
        BLOCK_D=block_d(head_dim),
        LIVE_M=shape.live_m,
        SHARES_PREFIXES=shape.shares_prefixes,
        **blocks,
    )


@triton.jit
def _paged_attention(
    out,
    q,
    keys,
    values,
    pages,
    tiles,
    split_acc,
    split_m,
    split_l,
    counts,
    scale,
    log2_soft_cap,
    out_row_stride,
    out_head_stride,
    q_row_stride,
    q_head_stride,
    key_page_stride,
    key_slot_stride,
    key_head_stride,
    value_page_stride,
    value_slot_stride,
    value_head_stride,
    TILE_WORDS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
    LIVE_M: tl.constexpr,
    WINDOW: tl.constexpr,
    MERGED_SPLITS: tl.constexpr,
    SHARES_PREFIXES: tl.constexpr,
    PDL_TRIGGER: tl.constexpr,
    PDL_WAIT: tl.constexpr,
):
    """One program per kv head and work tile. Scores are to base 2; a WINDOW of 0 hides nothing."""
    kv_head = tl.program_id(0)
    row_list = tiles + tl.num_programs(1) * TILE_WORDS if SHARES_PREFIXES else tiles
    tiles += tl.program_id(1) * TILE_WORDS
    first_row = tl.load(tiles + FIRST_ROW)
    if first_row < 0:
        if PDL_WAIT:
            # A PDL dependent of this kernel also relies on its predecessor.
            tl.extra.cuda.gdc_wait()
        return
    num_rows = tl.load(tiles + NUM_ROWS)
    pages += tl.load(tiles + FIRST_PAGE)
    num_tokens = tl.load(tiles + NUM_TOKENS)
    first_row_last_visible = tl.load(tiles + LAST_VISIBLE)
    split = tl.load(tiles + SPLIT)
    first_split = tl.load(tiles + FIRST_SPLIT)
    num_splits = tl.load(tiles + NUM_SPLITS)
    listed_row = first_row
    block = (first_row, num_rows)
    if SHARES_PREFIXES:
        block = (tl.load(tiles + BLOCK_FIRST_ROW), tl.load(tiles + BLOCK_NUM_ROWS))
        listed_row = _load_rows_of_list(row_list, first_row, num_rows, BLOCK_M, BLOCK_GROUP)

    keys += kv_head * key_head_stride
    values += kv_head * value_head_stride
    if PDL_WAIT:
        tl.extra.cuda.gdc_wait()
    if PDL_TRIGGER:
        tl.extra.cuda.gdc_launch_dependents()

    offs_m = tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)[None, :]
    query = offs_m // BLOCK_GROUP
    member = offs_m % BLOCK_GROUP
    is_row = (query < num_rows) & (member < GROUP)
    q_mask = is_row[:, None] & (offs_d < HEAD_DIM)
    row = (listed_row if SHARES_PREFIXES else first_row + query).to(tl.int64)[:, None]
    head = (kv_head * GROUP + member)[:, None]
    queries = tl.load(q + row * q_row_stride + head * q_head_stride + offs_d, mask=q_mask, other=0.0)
    if SHARES_PREFIXES:
        # Rows of several requests see all of their prefix.
        last_visible = first_row_last_visible + tl.zeros_like(query)
    else:
        # Unused rows see what the last one sees: something, so that nothing is divided by zero.
        last_visible = first_row_last_visible + tl.minimum(query, num_rows - 1)
    cache = (keys, values, pages, num_tokens)
    strides = (key_page_stride, key_slot_stride, value_page_stride, value_slot_stride)
    scoring = (queries, last_visible, scale, log2_soft_cap)
    sizes: tl.constexpr = (HEAD_DIM, PAGE_SIZE, BLOCK_N, BLOCK_D, STAGES, WINDOW)
    sums = _attend_to_all(cache, strides, scoring, first_row_last_visible, num_rows, sizes, BLOCK_M)

    if num_splits == 1:
        result = (sums[2] / sums[1][:, None]).to(out.dtype.element_ty)
        tl.store(out + row * out_row_stride + head * out_head_stride + offs_d, result, mask=q_mask)
    else:
        splits = (split_acc, split_m, split_l, counts)
        block_sizes: tl.constexpr = (BLOCK_M, HEAD_DIM, GROUP, BLOCK_GROUP, LIVE_M, BLOCK_D, MERGED_SPLITS)
        store_split(
            out,
            row_list,
            splits,
            sums,
            (kv_head, first_row, split, first_split, num_splits),
            block,
            (is_row, q_mask),
            (out_row_stride, out_head_stride),
            KV_HEADS,
            block_sizes,
            SHARES_PREFIXES,
        )


@triton.jit
def _load_rows_of_list(row_list, first_row, num_rows, BLOCK_M: tl.constexpr, BLOCK_GROUP: tl.constexpr):
    """The query row of each of the BLOCK_M rows, from its place in the table's list."""
    place = first_row + tl.arange(0, BLOCK_M) // BLOCK_GROUP
    return tl.load(row_list + place * LIST_STRIDE + LISTED_ROW, mask=place < first_row + num_rows, other=0)


@triton.jit
def _attend_to_all(
    cache, strides, scoring, first_row_last_visible, num_rows, sizes: tl.constexpr, BLOCK_M: tl.constexpr
):
    """m, l and acc of the rows over all tokens that they see."""
    BLOCK_N: tl.constexpr = sizes[2]
    BLOCK_D: tl.constexpr = sizes[3]
    WINDOW: tl.constexpr = sizes[5]
    num_tokens = cache[3]
    m_i = tl.full((BLOCK_M,), MIN_SCORE, dtype=tl.float32)
    l_i = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    sums = (m_i, l_i, acc)
    # All rows see all tokens from `first_full` to `end_full`, in whole blocks. Programs of few rows walk once: they
    # would wait for memory at the begin of each walk.
    first_full = 0
    end_full = 0
    if BLOCK_M >= 64:
        if WINDOW:
            num_hidden = tl.maximum(first_row_last_visible + num_rows - WINDOW, 0)
            first_full = tl.minimum(tl.cdiv(num_hidden, BLOCK_N) * BLOCK_N, num_tokens)
            sums = _attend(0, first_full, sums, cache, strides, scoring, sizes, True)
        num_seen_by_all = tl.minimum(first_row_last_visible + 1, num_tokens)
        end_full = tl.maximum(num_seen_by_all // BLOCK_N * BLOCK_N, first_full)
        sums = _attend(first_full, end_full, sums, cache, strides, scoring, sizes, False)
    return _attend(end_full, num_tokens, sums, cache, strides, scoring, sizes, True)


@triton.jit
def _attend(
    begin,
    end,
    sums,
    cache,
    strides,
    scoring,
    sizes: tl.constexpr,
    IS_MASKED: tl.constexpr,
):
    """Adds the tokens from `begin` to `end` to the sums."""
    m_i, l_i, acc = sums
    keys, values, pages, num_tokens = cache
    key_page_stride, key_slot_stride, value_page_stride, value_slot_stride = strides
    queries, last_visible, scale, log2_soft_cap = scoring
    HEAD_DIM: tl.constexpr = sizes[0]
    PAGE_SIZE: tl.constexpr = sizes[1]
    BLOCK_N: tl.constexpr = sizes[2]
    BLOCK_D: tl.constexpr = sizes[3]
    STAGES: tl.constexpr = sizes[4]
    WINDOW: tl.constexpr = sizes[5]
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)[None, :]
    last = tl.minimum(last_visible, num_tokens - 1)[:, None]
    for start in tl.range(begin, end, BLOCK_N, num_stages=STAGES):
        # Past the context the cache holds anything, even NaN, which a weight of zero would not silence. The last token
        # is read there instead.
        token = tl.minimum(start + offs_n, num_tokens - 1) if IS_MASKED else start + offs_n
        page = tl.load(pages + token // PAGE_SIZE).to(tl.int64)[:, None]
        slot = (token % PAGE_SIZE)[:, None]
        k = _load_rows(keys + page * key_page_stride + slot * key_slot_stride + offs_d, offs_d, HEAD_DIM, BLOCK_D)
        v = _load_rows(values + page * value_page_stride + slot * value_slot_stride + offs_d, offs_d, HEAD_DIM, BLOCK_D)
        scores = tl.dot(queries, tl.trans(k), input_precision="ieee")
        factor = scale
        if log2_soft_cap is not None:
            # tanh(x) = 1 - 2 / (e^2x + 1), and 1 for every x above 30.
            scores = log2_soft_cap * (1.0 - 2.0 / (tl.exp(2.0 * tl.minimum(scores * scale, 30.0)) + 1.0))
            factor = 1.0
        if IS_MASKED:
            is_visible = (start + offs_n)[None, :] <= last
            if WINDOW:
                is_visible &= (start + offs_n)[None, :] > last_visible[:, None] - WINDOW
            scores = tl.where(is_visible, scores, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(scores, axis=1) * factor)
        alpha = tl.exp2(m_i - m_new)
        p = tl.exp2(scores * factor - m_new[:, None])
        l_i = l_i * alpha + tl.sum(p, axis=1)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m_i = m_new
    return m_i, l_i, acc


@triton.jit
def _load_rows(rows, offs_d, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Keys or values, and zeros beyond their HEAD_DIM numbers."""
    if HEAD_DIM == BLOCK_D:
        return tl.load(rows)
    return tl.load(rows, mask=offs_d < HEAD_DIM, other=0.0)
