"""Paged attention in Triton, with the online softmax of FlashAttention (Dao et al., 2022).

One program takes one work tile: BLOCK_M rows (query rows times the query heads that share one kv head) and one split of
their context. The program of a split context that ends last merges the splits, always in the same order.
`punica_kernels.paged_attention` checks the arguments and documents the shapes.
"""

import math

import triton
import triton.language as tl
from torch import Tensor

from punica_kernels.attention_tiles import TILE_WORDS, AttentionShape, AttentionWorkspace, TileField
from punica_kernels.gpu.launch import pdl_options

#: The smallest side of a tensor-core tile.
_MIN_BLOCK = 16
#: Bytes of keys in a block of tokens, and most tokens in it.
_BLOCK_BYTES, _MAX_BLOCK_N = 16384, 64
#: Most splits that are merged at a time, and most of their rows: their loads wait for memory together.
_MAX_MERGED_SPLITS, _MAX_MERGED_ROWS = 8, 64
_NUM_WARPS = 4
_LOG2_E = math.log2(math.e)
#: Below every score. It is finite, so that a row that sees nothing of a split gets weights of zero and no NaN.
_MIN_SCORE = tl.constexpr(-3e38)

_FIRST_ROW = tl.constexpr(TileField.FIRST_ROW)
_NUM_ROWS = tl.constexpr(TileField.NUM_ROWS)
_FIRST_PAGE = tl.constexpr(TileField.FIRST_PAGE)
_NUM_TOKENS = tl.constexpr(TileField.NUM_TOKENS)
_LAST_VISIBLE = tl.constexpr(TileField.LAST_VISIBLE)
_SPLIT = tl.constexpr(TileField.SPLIT)
_FIRST_SPLIT = tl.constexpr(TileField.FIRST_SPLIT)
_NUM_SPLITS = tl.constexpr(TileField.NUM_SPLITS)


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
    block_d = max(_MIN_BLOCK, triton.next_power_of_2(head_dim))
    _paged_attention[(shape.kv_heads, shape.max_tiles)](
        out,
        q,
        keys,
        values,
        pages,
        tiles,
        workspace.acc,
        *workspace.m_and_l,
        workspace.counts,
        scale * _LOG2_E if soft_cap is None else scale / soft_cap,
        None if soft_cap is None else soft_cap * _LOG2_E,
        *out.stride()[:2],
        *q.stride()[:2],
        *keys.stride()[:3],
        *values.stride()[:3],
        TILE_WORDS=TILE_WORDS,
        HEAD_DIM=head_dim,
        PAGE_SIZE=page_size,
        KV_HEADS=shape.kv_heads,
        GROUP=shape.heads // shape.kv_heads,
        BLOCK_GROUP=shape.block_group,
        BLOCK_M=shape.block_m,
        BLOCK_N=max(_MIN_BLOCK, min(_MAX_BLOCK_N, _BLOCK_BYTES // (block_d * q.element_size()))),
        BLOCK_D=block_d,
        # Programs of few rows wait for memory: a multiprocessor runs more of them if each takes less of it.
        STAGES=2 if shape.block_m == _MIN_BLOCK else 3,
        LIVE_M=shape.live_m,
        WINDOW=shape.window or 0,
        MERGED_SPLITS=max(1, min(_MAX_MERGED_SPLITS, 4 * shape.live_m, _MAX_MERGED_ROWS // shape.live_m)),
        num_warps=_NUM_WARPS,
        **pdl_options(q.device, wait=pdl),
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
    PDL_TRIGGER: tl.constexpr,
    PDL_WAIT: tl.constexpr,
):
    """One program per kv head and work tile. Scores are to base 2; a WINDOW of 0 hides nothing."""
    kv_head = tl.program_id(0)
    tiles += tl.program_id(1) * TILE_WORDS
    first_row = tl.load(tiles + _FIRST_ROW)
    if first_row < 0:
        if PDL_WAIT:
            # A PDL dependent of this kernel also relies on its predecessor.
            tl.extra.cuda.gdc_wait()
        return
    num_rows = tl.load(tiles + _NUM_ROWS)
    pages += tl.load(tiles + _FIRST_PAGE)
    num_tokens = tl.load(tiles + _NUM_TOKENS)
    first_row_last_visible = tl.load(tiles + _LAST_VISIBLE)
    split = tl.load(tiles + _SPLIT)
    first_split = tl.load(tiles + _FIRST_SPLIT)
    num_splits = tl.load(tiles + _NUM_SPLITS)

    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)[None, :]
    keys += kv_head * key_head_stride
    values += kv_head * value_head_stride
    if PDL_WAIT:
        tl.extra.cuda.gdc_wait()
    if PDL_TRIGGER:
        tl.extra.cuda.gdc_launch_dependents()

    offs_m = tl.arange(0, BLOCK_M)
    query = offs_m // BLOCK_GROUP
    member = offs_m % BLOCK_GROUP
    is_row = (query < num_rows) & (member < GROUP)
    q_mask = is_row[:, None] & (offs_d < HEAD_DIM)
    row = (first_row + query).to(tl.int64)[:, None]
    head = (kv_head * GROUP + member)[:, None]
    queries = tl.load(q + row * q_row_stride + head * q_head_stride + offs_d, mask=q_mask, other=0.0)
    # Unused rows see what the last one sees: something, so that nothing is divided by zero.
    last_visible = (first_row_last_visible + tl.minimum(query, num_rows - 1))[:, None]
    m_i = tl.full((BLOCK_M,), _MIN_SCORE, dtype=tl.float32)
    l_i = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    for start in tl.range(0, num_tokens, BLOCK_N, num_stages=STAGES):
        token = start + offs_n
        is_token = token < num_tokens
        page = tl.load(pages + token // PAGE_SIZE, mask=is_token, other=0).to(tl.int64)[:, None]
        slot = (token % PAGE_SIZE)[:, None]
        # Past the context the cache holds anything, even NaN, which a probability of zero would not silence.
        kv_mask = is_token[:, None] & (offs_d < HEAD_DIM)
        k = tl.load(keys + page * key_page_stride + slot * key_slot_stride + offs_d, mask=kv_mask, other=0.0)
        v = tl.load(values + page * value_page_stride + slot * value_slot_stride + offs_d, mask=kv_mask, other=0.0)
        scores = tl.dot(queries, tl.trans(k), input_precision="ieee") * scale
        if log2_soft_cap is not None:
            # tanh(x) = 1 - 2 / (e^2x + 1), and 1 for every x above 30.
            scores = log2_soft_cap * (1.0 - 2.0 / (tl.exp(2.0 * tl.minimum(scores, 30.0)) + 1.0))
        is_visible = is_token[None, :] & (token[None, :] <= last_visible)
        if WINDOW:
            is_visible &= token[None, :] > last_visible - WINDOW
        scores = tl.where(is_visible, scores, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(scores, axis=1))
        alpha = tl.exp2(m_i - m_new)
        p = tl.exp2(scores - m_new[:, None])
        l_i = l_i * alpha + tl.sum(p, axis=1)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m_i = m_new

    if num_splits == 1:
        result = (acc / l_i[:, None]).to(out.dtype.element_ty)
        tl.store(out + row * out_row_stride + head * out_head_stride + offs_d, result, mask=q_mask)
    else:
        place = (split * KV_HEADS + kv_head) * BLOCK_M + offs_m
        tl.store(split_acc + place[:, None] * HEAD_DIM + offs_d, acc, mask=q_mask)
        tl.store(split_m + place, m_i, mask=is_row)
        tl.store(split_l + place, l_i, mask=is_row)
        # All threads must have written before the count says so.
        tl.debug_barrier()
        count = counts + first_split * KV_HEADS + kv_head
        if tl.atomic_add(count, 1, sem="acq_rel") == num_splits - 1:
            tl.store(count, 0)
            _merge_splits(
                out + first_row.to(tl.int64) * out_row_stride + kv_head * GROUP * out_head_stride,
                split_acc,
                split_m,
                split_l,
                (first_split * KV_HEADS + kv_head) * BLOCK_M,
                num_splits,
                num_rows,
                out_row_stride,
                out_head_stride,
                KV_HEADS * BLOCK_M,
                HEAD_DIM,
                GROUP,
                BLOCK_GROUP,
                LIVE_M,
                BLOCK_D,
                MERGED_SPLITS,
            )


@triton.jit
def _merge_splits(
    out,
    split_acc,
    split_m,
    split_l,
    first_place,
    num_splits,
    num_rows,
    out_row_stride,
    out_head_stride,
    SPLIT_STRIDE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_GROUP: tl.constexpr,
    LIVE_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    MERGED_SPLITS: tl.constexpr,
):
    """The rows of `out` from their splits, MERGED_SPLITS at a time."""
    offs_m = tl.arange(0, LIVE_M)
    offs_d = tl.arange(0, BLOCK_D)[None, :]
    query = offs_m // BLOCK_GROUP
    member = offs_m % BLOCK_GROUP
    is_row = (query < num_rows) & (member < GROUP)
    mask = is_row[:, None] & (offs_d < HEAD_DIM)
    m_i = tl.full((LIVE_M,), _MIN_SCORE, dtype=tl.float32)
    l_i = tl.where(is_row, 0.0, 1.0)
    acc = tl.zeros((LIVE_M, BLOCK_D), dtype=tl.float32)
    for start in range(0, num_splits, MERGED_SPLITS):
        for number in tl.static_range(MERGED_SPLITS):
            split = start + number
            is_split = split < num_splits
            place = first_place + split * SPLIT_STRIDE + offs_m
            # From the L2 cache, where other multiprocessors have written them.
            m_split = tl.load(split_m + place, mask=is_row & is_split, other=_MIN_SCORE, cache_modifier=".cg")
            l_split = tl.load(split_l + place, mask=is_row & is_split, other=0.0, cache_modifier=".cg")
            cells = split_acc + place[:, None] * HEAD_DIM + offs_d
            acc_split = tl.load(cells, mask=mask & is_split, other=0.0, cache_modifier=".cg")
            m_new = tl.maximum(m_i, m_split)
            alpha = tl.exp2(m_i - m_new)
            beta = tl.exp2(m_split - m_new)
            l_i = l_i * alpha + l_split * beta
            acc = acc * alpha[:, None] + acc_split * beta[:, None]
            m_i = m_new
    result = (acc / l_i[:, None]).to(out.dtype.element_ty)
    rows = out + query * out_row_stride + member * out_head_stride
    tl.store(rows[:, None] + offs_d, result, mask=mask)
