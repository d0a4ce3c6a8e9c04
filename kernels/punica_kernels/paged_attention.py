"""Attention over a paged KvCache (Kwon et al., PagedAttention, SOSP 2023), for prefill chunks and decodes alike.

The keys and values of a request lie in pages anywhere in the cache, in the order of its list of pages. The query rows
of a request are the last rows of its context, so a decode is a chunk of one row.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from punica_kernels.attention_spans import SPAN_WORDS, AttentionShape
from punica_kernels.checks import require_dense_rows, require_shape


@dataclass(frozen=True, slots=True)
class AttentionWorkspace:
    """Where programs leave the parts of divided contexts. Calls that share one must run one after the other."""

    #: float32, flat: of each part, kv head and lane, the values summed with their exponentials relative to the highest
    #: score as weights. Contents never matter before a call.
    values: Tensor
    #: float32 [2, parts * kv heads * lanes]: the highest score, to base 2, and the sum of exponentials.
    sums: Tensor
    #: int32 [parts * kv heads]: parts that are there. Zero before and after each call.
    counts: Tensor

    @classmethod
    def of(cls, shapes: Sequence[AttentionShape], head_dim: int, device: torch.device) -> "AttentionWorkspace":
        """Memory for calls of any of these shapes."""
        num_parts = max((shape.max_parts * shape.kv_heads for shape in shapes), default=0)
        num_lanes = max((shape.max_parts * shape.kv_heads * shape.lanes for shape in shapes), default=0)
        return cls(
            torch.empty(num_lanes * head_dim, device=device),
            torch.empty(2, num_lanes, device=device),
            torch.zeros(num_parts, dtype=torch.int32, device=device),
        )


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
    """out = softmax(q k^T * scale) v, causal, each row over its own request's context.

    Sums are float32. Heads share keys and values in groups: query head h reads kv head h // (heads / kv_heads). What
    lies in the cache beyond a context is never seen, NaN or not. The launch depends on shapes alone, so a CUDA graph
    can replay it on other requests. Same inputs, same result, to the bit.

    Args:
        out, q: [num_rows, heads, head_dim] of one dtype. Rows that are in no span are not written.
        keys, values: [num_pages, page_size, kv_heads, head_dim], strided views of one layer of the cache.
        pages: int32 [any number]: the pages of all requests; what no request uses is not read.
        spans: int32 [shape.num_words], as `shape.fill` writes them.
        workspace: made for this shape among others.
        chained: on CUDA, start while the kernel before this one on the stream ends; that must not write pages or spans.

    Raises ValueError, naming the argument, when the shapes do not fit.
    """
    _check(out, q, keys, values, pages, spans, shape, workspace)
    if q.is_cuda:
        from punica_kernels.gpu import paged_attention as kernels

        require_dense_rows(out=out, q=q, keys=keys, values=values, pages=pages, spans=spans)
        kernels.paged_attention(out, q, keys, values, pages, spans, shape, workspace, scale, chained=chained)
    else:
        _paged_attention(out, q, keys, values, pages, spans, scale)


def _paged_attention(
    out: Tensor, q: Tensor, keys: Tensor, values: Tensor, pages: Tensor, spans: Tensor, scale: float
) -> None:
    """Each block's spans at once: `spans` lists the longest first, not in the order of the context."""
    blocks: dict[tuple[int, int], list[list[int]]] = defaultdict(list)
    for first_row, num_rows, *span in spans.view(-1, SPAN_WORDS).tolist():
        if first_row >= 0:
            blocks[first_row, num_rows].append(span)
    for (first_row, num_rows), parts in blocks.items():
        parts.sort()
        cells = torch.cat([_cells(pages, first_page, tokens, keys.shape[1]) for first_page, tokens, *_ in parts])
        last_seen = parts[0][2] + torch.arange(num_rows, device=q.device)
        rows = slice(first_row, first_row + num_rows)
        k, v = (pool[cells // keys.shape[1], cells % keys.shape[1]] for pool in (keys, values))
        out[rows] = _attend(q[rows], k, v, last_seen, scale)


def _cells(pages: Tensor, first_page: int, num_tokens: int, page_size: int) -> Tensor:
    """int64 [tokens]: page * page_size + offset of each."""
    tokens = torch.arange(num_tokens, device=pages.device)
    return pages[first_page + tokens // page_size].long() * page_size + tokens % page_size


def _attend(q: Tensor, k: Tensor, v: Tensor, last_seen: Tensor, scale: float) -> Tensor:
    """q [rows, heads, head_dim], k and v [context, kv_heads, head_dim], last_seen [rows] -> float32, like q."""
    num_rows, heads, head_dim = q.shape
    context, kv_heads, _ = k.shape
    groups = q.float().view(num_rows, kv_heads, heads // kv_heads, head_dim)
    scores = torch.einsum("rkgd,ckd->kgrc", groups, k.float()) * scale
    hidden = torch.arange(context, device=q.device) > last_seen[:, None]
    probs = scores.masked_fill_(hidden, -torch.inf).softmax(-1)
    return torch.einsum("kgrc,ckd->rkgd", probs, v.float()).reshape(q.shape)


def _check(
    out: Tensor,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    pages: Tensor,
    spans: Tensor,
    shape: AttentionShape,
    workspace: AttentionWorkspace,
) -> None:
    head_dim = q.shape[2]
    require_shape("q", q, len(q), shape.heads, head_dim)
    require_shape("out", out, *q.shape)
    require_shape("keys", keys, *keys.shape[:2], shape.kv_heads, head_dim)
    require_shape("values", values, *keys.shape)
    require_shape("pages", pages, len(pages))
    require_shape("spans", spans, shape.num_words)
    num_parts = shape.max_parts * shape.kv_heads
    needed = {"values": num_parts * shape.lanes * head_dim, "sums": 2 * num_parts * shape.lanes, "counts": num_parts}
    for name, numel in needed.items():
        if getattr(workspace, name).numel() < numel:
            raise ValueError(f"workspace must have {name} of {numel} or more, got {getattr(workspace, name).numel()}")
