"""Attention over a paged KvCache (Kwon et al., PagedAttention, SOSP 2023), for prefill chunks and decodes alike.

The keys and values of a request lie in pages anywhere in the cache, in the order of its list of pages. The query rows
of a request are the last rows of its context, so a decode is a chunk of one row.
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
    pages: Tensor,
    page_starts: Tensor,
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
        pages: int32 [any number]: the pages of all requests; what no request uses is not read.
        page_starts: int32 [N + 1]: the pages of request i begin at pages[page_starts[i]].
        context_lengths: int32 [N]: tokens in the cache, the query rows' own included. The rows of a request of length
            0 are not written.
        query_starts: int32 [N + 1]: request i has rows query_starts[i] to query_starts[i + 1] - 1.
        max_query_rows: no request has more query rows.

    Raises ValueError, naming the argument, when the shapes do not fit.
    """
    _check(out, q, keys, values, pages, page_starts, context_lengths, query_starts)
    arguments = (out, q, keys, values, pages, page_starts, context_lengths, query_starts, max_query_rows, scale)
    if q.is_cuda:
        from punica_kernels.gpu import paged_attention as kernels

        require_dense_rows(out=out, q=q, keys=keys, values=values)
        require_dense_rows(pages=pages, page_starts=page_starts)
        require_dense_rows(context_lengths=context_lengths, query_starts=query_starts)
        kernels.paged_attention(*arguments)
    else:
        _paged_attention(*arguments[:-2], scale)


def _paged_attention(
    out: Tensor,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    pages: Tensor,
    page_starts: Tensor,
    context_lengths: Tensor,
    query_starts: Tensor,
    scale: float,
) -> None:
    for request, (first, end) in enumerate(pairwise(query_starts.tolist())):
        context = int(context_lengths[request])
        if context and first < end:
            start = int(page_starts[request])
            own = pages[start : start - (-context // keys.shape[1])]
            k, v = (pool.index_select(0, own).flatten(0, 1)[:context] for pool in (keys, values))
            out[first:end] = _attend(q[first:end], k, v, scale)


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
    pages: Tensor,
    page_starts: Tensor,
    context_lengths: Tensor,
    query_starts: Tensor,
) -> None:
    num_requests, kv_heads = len(context_lengths), keys.shape[2]
    require_shape("out", out, *q.shape)
    require_shape("keys", keys, *keys.shape[:3], q.shape[2])
    require_shape("values", values, *keys.shape)
    require_shape("pages", pages, len(pages))
    require_shape("page_starts", page_starts, num_requests + 1)
    require_shape("query_starts", query_starts, num_requests + 1)
    if q.shape[1] % kv_heads:
        raise ValueError(f"q must have a multiple of the {kv_heads} kv heads, got {q.shape[1]} heads")
