"""Paged attention in Triton: CUDA's for every prefill, and for decodes where FlashInfer has no kernels.

Those are decodes in float32 and of unusual head sizes.

One program holds a block of a request's query rows for all query heads that share one kv head, and walks over the
request's keys and values once, in blocks of tokens, with the running softmax of FlashAttention (Dao et al., 2022).
Arguments are checked by `punica_kernels.paged_attention`, which has the shapes.
"""

import math

import triton
import triton.language as tl
from torch import Tensor

from punica_kernels.gpu.launch import launch_options

#: The least that a side of a tensor core's tile has.
_TILE = 16


def paged_attention(
    out: Tensor,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    pages: Tensor,
    page_starts: Tensor,
    context_lengths: Tensor,
    query_starts: Tensor,
    max_query_rows: int,
    scale: float,
) -> None:
    """out = softmax(q k^T * scale) v over each row's own request, one launch."""
    _, heads, head_dim = q.shape
    _, page_size, kv_heads, _ = keys.shape
    num_requests = len(context_lengths)
    if num_requests == 0 or max_query_rows == 0:
        return
    block_group = triton.next_power_of_2(heads // kv_heads)
    # A float32 product has no tensor core: a taller tile does not fit the registers.
    lanes = (
        _TILE if q.element_size() == 4 else min(64, max(_TILE, triton.next_power_of_2(max_query_rows) * block_group))
    )
    block_rows = max(1, lanes // block_group)
    block_dim = max(_TILE, triton.next_power_of_2(head_dim))
    _paged_attention[(triton.cdiv(max_query_rows, block_rows), kv_heads, num_requests)](
        out,
        q,
        keys,
        values,
        pages,
        page_starts,
        context_lengths,
        query_starts,
        scale * math.log2(math.e),
        *out.stride()[:2],
        *q.stride()[:2],
        *keys.stride()[:3],
        *values.stride()[:3],
        HEAD_DIM=head_dim,
        PAGE_SIZE=page_size,
        GROUP=heads // kv_heads,
        BLOCK_ROWS=block_rows,
        BLOCK_GROUP=block_group,
        BLOCK_TOKENS=max(_TILE, min(64, 16384 // (block_dim * q.element_size()))),
        BLOCK_DIM=block_dim,
        **launch_options(4),
    )


@triton.jit
def _paged_attention(
    out,
    q,
    keys,
    values,
    pages,
    page_starts,
    context_lengths,
    query_starts,
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
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_GROUP: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """One program per block of query rows, kv head and request."""
    kv_head = tl.program_id(1)
    request = tl.program_id(2)
    context = tl.load(context_lengths + request)
    first_row = tl.load(query_starts + request)
    num_rows = tl.load(query_starts + request + 1) - first_row
    first_query = tl.program_id(0) * BLOCK_ROWS
    if (context == 0) | (first_query >= num_rows):
        return

    lanes = tl.arange(0, BLOCK_ROWS * BLOCK_GROUP)
    query = first_query + lanes // BLOCK_GROUP
    member = lanes % BLOCK_GROUP
    dims = tl.arange(0, BLOCK_DIM)[None, :]
    is_query = ((query < num_rows) & (member < GROUP))[:, None] & (dims < HEAD_DIM)
    row = (first_row + query).to(tl.int64)[:, None]
    head = (kv_head * GROUP + member)[:, None]
    queries = tl.load(q + row * q_row_stride + head * q_head_stride + dims, mask=is_query, other=0.0)

    last_seen = context - num_rows + query
    end = tl.minimum(context, context - num_rows + first_query + BLOCK_ROWS)
    pages += tl.load(page_starts + request)
    keys += kv_head * key_head_stride + dims
    values += kv_head * value_head_stride + dims
    highest = tl.full((BLOCK_ROWS * BLOCK_GROUP,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_ROWS * BLOCK_GROUP,), dtype=tl.float32)
    weighted = tl.zeros((BLOCK_ROWS * BLOCK_GROUP, BLOCK_DIM), dtype=tl.float32)
    for start in range(0, end, BLOCK_TOKENS):
        token = start + tl.arange(0, BLOCK_TOKENS)
        is_token = token < end
        page = tl.load(pages + token // PAGE_SIZE, mask=is_token, other=0).to(tl.int64)[:, None]
        slot = (token % PAGE_SIZE)[:, None]
        # Beyond the context lies anything, even NaN, which a probability of zero would not silence.
        is_there = is_token[:, None] & (dims < HEAD_DIM)
        k = tl.load(keys + page * key_page_stride + slot * key_slot_stride, mask=is_there, other=0.0)
        v = tl.load(values + page * value_page_stride + slot * value_slot_stride, mask=is_there, other=0.0)
        scores = tl.dot(queries, tl.trans(k), input_precision="ieee") * log2_scale
        scores = tl.where(token[None, :] <= last_seen[:, None], scores, float("-inf"))
        # Every row sees position 0, so from the first block on no row's highest is -inf.
        new_highest = tl.maximum(highest, tl.max(scores, axis=1))
        faded = tl.exp2(highest - new_highest)
        probs = tl.exp2(scores - new_highest[:, None])
        total = total * faded + tl.sum(probs, axis=1)
        weighted = weighted * faded[:, None] + tl.dot(probs.to(v.dtype), v, input_precision="ieee")
        highest = new_highest
    result = (weighted / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + row * out_row_stride + head * out_head_stride + dims, result, mask=is_query)
