"""Paged attention in Triton, with the running softmax of FlashAttention (Dao et al., 2022).

One program takes one span: a block of query rows, for all query heads that share one kv head, and a part of its
context. Whichever program of a divided block ends last merges the parts, always in their order.
Arguments are checked by `punica_kernels.paged_attention`, which has the shapes.
"""

import math

import triton
import triton.language as tl
from torch import Tensor

from punica_kernels.attention_spans import SPAN_WORDS, AttentionShape
from punica_kernels.gpu.launch import can_overlap, launch_options
from punica_kernels.paged_attention import AttentionWorkspace

#: The least that a side of a tensor core's tile has.
_TILE = 16
#: Of keys in a block of tokens.
_BLOCK_BYTES, _MAX_BLOCK_TOKENS = 16384, 64
#: Most parts that are merged at a time, and most of their lanes: their loads wait for memory together.
_MERGED_PARTS, _MERGED_LANES = 8, 64
_NUM_WARPS = 4
#: Below every score. Finite: a row that sees nothing of a part has weights of zero there, and no NaN.
_LOWEST = tl.constexpr(-3e38)


def paged_attention(
    out: Tensor,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    pages: Tensor,
    spans: Tensor,
    shape: AttentionShape,
    workspace: AttentionWorkspace,
    scale: float,
    *,
    chained: bool = False,
) -> None:
    """out = softmax(q k^T * scale) v over each row's own request, one launch."""
    head_dim, page_size = q.shape[2], keys.shape[1]
    block_dim = max(_TILE, triton.next_power_of_2(head_dim))
    overlap = can_overlap(q.device)
    _paged_attention[(shape.kv_heads, shape.max_spans)](
        out,
        q,
        keys,
        values,
        pages,
        spans,
        workspace.values,
        *workspace.sums,
        workspace.counts,
        scale * math.log2(math.e),
        *out.stride()[:2],
        *q.stride()[:2],
        *keys.stride()[:3],
        *values.stride()[:3],
        WORDS=SPAN_WORDS,
        HEAD_DIM=head_dim,
        PAGE_SIZE=page_size,
        KV_HEADS=shape.kv_heads,
        GROUP=shape.heads // shape.kv_heads,
        BLOCK_GROUP=shape.block_group,
        LANES=shape.lanes,
        BLOCK_TOKENS=max(_TILE, min(_MAX_BLOCK_TOKENS, _BLOCK_BYTES // (block_dim * q.element_size()))),
        BLOCK_DIM=block_dim,
        # Of few lanes, which wait for memory, a multiprocessor runs the more programs, the less of it each takes.
        STAGES=2 if shape.lanes == _TILE else 3,
        LIVE_LANES=shape.live_lanes,
        MERGED=max(1, min(_MERGED_PARTS, 4 * shape.live_lanes, _MERGED_LANES // shape.live_lanes)),
        PDL=overlap,
        CHAINED=overlap and chained,
        **launch_options(_NUM_WARPS, overlap=overlap and chained),
    )


@triton.jit
def _paged_attention(
    out,
    q,
    keys,
    values,
    pages,
    spans,
    part_values,
    part_highest,
    part_totals,
    counts,
    log2_scale,
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
    WORDS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_GROUP: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    STAGES: tl.constexpr,
    LIVE_LANES: tl.constexpr,
    MERGED: tl.constexpr,
    PDL: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """One program per kv head and span."""
    kv_head = tl.program_id(0)
    spans += tl.program_id(1) * WORDS
    first_row = tl.load(spans)
    if first_row < 0:
        if CHAINED:
            # Whoever waits for this launch waits for the one before it.
            tl.extra.cuda.gdc_wait()
        return
    num_rows = tl.load(spans + 1)
    pages += tl.load(spans + 2)
    num_tokens = tl.load(spans + 3)
    first_seen = tl.load(spans + 4)
    part = tl.load(spans + 5)
    first_part = tl.load(spans + 6)
    num_parts = tl.load(spans + 7)

    tokens = tl.arange(0, BLOCK_TOKENS)
    dims = tl.arange(0, BLOCK_DIM)[None, :]
    keys += kv_head * key_head_stride
    values += kv_head * value_head_stride
    if CHAINED:
        tl.extra.cuda.gdc_wait()
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()

    lanes = tl.arange(0, LANES)
    query = lanes // BLOCK_GROUP
    member = lanes % BLOCK_GROUP
    is_lane = (query < num_rows) & (member < GROUP)
    is_query = is_lane[:, None] & (dims < HEAD_DIM)
    row = (first_row + query).to(tl.int64)[:, None]
    head = (kv_head * GROUP + member)[:, None]
    queries = tl.load(q + row * q_row_stride + head * q_head_stride + dims, mask=is_query, other=0.0)
    last_seen = (first_seen + query)[:, None]
    highest = tl.full((LANES,), _LOWEST, dtype=tl.float32)
    total = tl.zeros((LANES,), dtype=tl.float32)
    weighted = tl.zeros((LANES, BLOCK_DIM), dtype=tl.float32)
    for start in tl.range(0, num_tokens, BLOCK_TOKENS, num_stages=STAGES):
        token = start + tokens
        is_token = token < num_tokens
        page = tl.load(pages + token // PAGE_SIZE, mask=is_token, other=0).to(tl.int64)[:, None]
        slot = (token % PAGE_SIZE)[:, None]
        # Beyond the context lies anything, even NaN, which a probability of zero would not silence.
        is_there = is_token[:, None] & (dims < HEAD_DIM)
        k = tl.load(keys + page * key_page_stride + slot * key_slot_stride + dims, mask=is_there, other=0.0)
        v = tl.load(values + page * value_page_stride + slot * value_slot_stride + dims, mask=is_there, other=0.0)
        scores = tl.dot(queries, tl.trans(k), input_precision="ieee") * log2_scale
        scores = tl.where(is_token[None, :] & (token[None, :] <= last_seen), scores, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(scores, axis=1))
        faded = tl.exp2(highest - new_highest)
        probs = tl.exp2(scores - new_highest[:, None])
        total = total * faded + tl.sum(probs, axis=1)
        weighted = weighted * faded[:, None] + tl.dot(probs.to(v.dtype), v, input_precision="ieee")
        highest = new_highest

    if num_parts == 1:
        result = (weighted / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + row * out_row_stride + head * out_head_stride + dims, result, mask=is_query)
    else:
        place = (part * KV_HEADS + kv_head) * LANES + lanes
        tl.store(part_values + place[:, None] * HEAD_DIM + dims, weighted, mask=is_query)
        tl.store(part_highest + place, highest, mask=is_lane)
        tl.store(part_totals + place, total, mask=is_lane)
        # All threads' parts are written before the count says so.
        tl.debug_barrier()
        count = counts + first_part * KV_HEADS + kv_head
        if tl.atomic_add(count, 1, sem="acq_rel") == num_parts - 1:
            tl.store(count, 0)
            _merge(
                out + first_row.to(tl.int64) * out_row_stride + kv_head * GROUP * out_head_stride,
                part_values,
                part_highest,
                part_totals,
                (first_part * KV_HEADS + kv_head) * LANES,
                num_parts,
                num_rows,
                out_row_stride,
                out_head_stride,
                KV_HEADS * LANES,
                HEAD_DIM,
                GROUP,
                BLOCK_GROUP,
                LIVE_LANES,
                BLOCK_DIM,
                MERGED,
            )


@triton.jit
def _merge(
    out,
    part_values,
    part_highest,
    part_totals,
    first_place,
    num_parts,
    num_rows,
    out_row_stride,
    out_head_stride,
    PART_STRIDE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_GROUP: tl.constexpr,
    LIVE_LANES: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    MERGED: tl.constexpr,
):
    """A block's rows of out from its parts, MERGED of them at a time."""
    lanes = tl.arange(0, LIVE_LANES)
    dims = tl.arange(0, BLOCK_DIM)[None, :]
    query = lanes // BLOCK_GROUP
    member = lanes % BLOCK_GROUP
    is_lane = (query < num_rows) & (member < GROUP)
    is_cell = is_lane[:, None] & (dims < HEAD_DIM)
    highest = tl.full((LIVE_LANES,), _LOWEST, dtype=tl.float32)
    total = tl.where(is_lane, 0.0, 1.0)
    weighted = tl.zeros((LIVE_LANES, BLOCK_DIM), dtype=tl.float32)
    for some in range(0, num_parts, MERGED):
        for number in tl.static_range(MERGED):
            part = some + number
            is_part = part < num_parts
            place = first_place + part * PART_STRIDE + lanes
            # From the L2 cache, where other multiprocessors have written them.
            its_highest = tl.load(part_highest + place, mask=is_lane & is_part, other=_LOWEST, cache_modifier=".cg")
            its_total = tl.load(part_totals + place, mask=is_lane & is_part, other=0.0, cache_modifier=".cg")
            cells = part_values + place[:, None] * HEAD_DIM + dims
            its_weighted = tl.load(cells, mask=is_cell & is_part, other=0.0, cache_modifier=".cg")
            new_highest = tl.maximum(highest, its_highest)
            faded = tl.exp2(highest - new_highest)
            weight = tl.exp2(its_highest - new_highest)
            total = total * faded + its_total * weight
            weighted = weighted * faded[:, None] + its_weighted * weight[:, None]
            highest = new_highest
    result = (weighted / total[:, None]).to(out.dtype.element_ty)
    rows = out + query * out_row_stride + member * out_head_stride
    tl.store(rows[:, None] + dims, result, mask=is_cell)
