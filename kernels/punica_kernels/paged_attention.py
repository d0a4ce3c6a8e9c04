"""Attention over a paged KvCache (Kwon et al., PagedAttention, SOSP 2023), for prefill chunks and decodes alike.

The keys and values of a request lie in pages anywhere in the cache, in the order of its page table. The query rows of a
request are the last rows of its context, so a decode is a chunk of one row.
"""

from itertools import pairwise

import torch
from torch import Tensor

from punica_kernels.checks import require_dense_rows, require_shape


def paged_attention(
    out: Tensor,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    page_table: Tensor,
    context_lengths: Tensor,
    query_starts: Tensor,
    max_query_rows: int,
    scale: float,
) -> None:
    """out = softmax(q k^T * scale) v, causal, each row over its own request's context.

    Row j of the n rows of request i sees positions 0 to context_lengths[i] - n + j. Sums are float32. Heads share keys
    and values in groups: query head h reads kv head h // (heads / kv_heads). What lies in the cache beyond a context
    is never seen, NaN or not. The launch depends on shapes and max_query_rows alone, so a CUDA graph can replay it on
    other requests.

    Args:
        out, q: [num_rows, heads, head_dim] of one dtype.
        keys, values: [num_pages, page_size, kv_heads, head_dim], strided views of one layer of the cache.
        page_table: int32 [N, max_pages]: the pages of each request; unused entries are not read.
        context_lengths: int32 [N]: tokens in the cache, the query rows' own included. The rows of a request of length
            0 are not written.
        query_starts: int32 [N + 1]: request i has rows query_starts[i] to query_starts[i + 1] - 1.
        max_query_rows: no request has more query rows.

    Raises ValueError, naming the argument, when the shapes do not fit.
    """
    _check(out, q, keys, values, page_table, context_lengths, query_starts)
    arguments = (out, q, keys, values, page_table, context_lengths, query_starts, max_query_rows, scale)
    if q.is_cuda:
        from punica_kernels.gpu import paged_attention as kernels

        require_dense_rows(out=out, q=q, keys=keys, values=values)
        require_dense_rows(page_table=page_table, context_lengths=context_lengths, query_starts=query_starts)
        kernels.paged_attention(*arguments)
    else:
        _paged_attention(*arguments[:-2], scale)


def _paged_attention(
    out: Tensor,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    page_table: Tensor,
    context_lengths: Tensor,
    query_starts: Tensor,
    scale: float,
) -> None:
    for request, (start, end) in enumerate(pairwise(query_starts.tolist())):
        context = int(context_lengths[request])
        if context and start < end:
            pages = page_table[request, : -(-context // keys.shape[1])]
            k = keys.index_select(0, pages).flatten(0, 1)[:context]
            v = values.index_select(0, pages).flatten(0, 1)[:context]
            out[start:end] = _attend(q[start:end], k, v, scale)


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """q [rows, heads, head_dim], k and v [context, kv_heads, head_dim] -> float32, like q."""
    num_rows, heads, head_dim = q.shape
    context, kv_heads, _ = k.shape
    groups = q.float().view(num_rows, kv_heads, heads // kv_heads, head_dim)
    scores = torch.einsum("rkgd,ckd->kgrc", groups, k.float()) * scale
    last_seen = torch.arange(context - num_rows, context, device=q.device)
    hidden = torch.arange(context, device=q.device) > last_seen[:, None]
    probs = scores.masked_fill_(hidden, -torch.inf).softmax(-1)
    return torch.einsum("kgrc,ckd->rkgd", probs, v.float()).reshape(q.shape)


def _check(
    out: Tensor,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    page_table: Tensor,
    context_lengths: Tensor,
    query_starts: Tensor,
) -> None:
    num_requests, kv_heads = page_table.shape[0], keys.shape[2]
    require_shape("out", out, *q.shape)
    require_shape("keys", keys, *keys.shape[:3], q.shape[2])
    require_shape("values", values, *keys.shape)
    require_shape("context_lengths", context_lengths, num_requests)
    require_shape("query_starts", query_starts, num_requests + 1)
    if q.shape[1] % kv_heads:
        raise ValueError(f"q must have a multiple of the {kv_heads} kv heads, got {q.shape[1]} heads")
