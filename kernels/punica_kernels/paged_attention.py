"""Attention over a paged KvCache (Kwon et al., PagedAttention, SOSP 2023), for prefill chunks and decodes alike.

The keys and values of a request lie in pages anywhere in the cache, in the order of its list of pages. The query rows
of a request are the last rows of its context, so a decode is a chunk of one row.
"""

from collections import defaultdict
from operator import itemgetter
from typing import NamedTuple

import torch
from torch import Tensor

from punica_kernels.attention_tiles import AttentionShape, AttentionWorkspace
from punica_kernels.checks import require_dense_rows, require_shape
from punica_kernels.tile_fields import ROW_WORDS, RowField, WorkTileField


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
    """out = softmax(q k^T * scale) v, causal, each row over its own request's context, or the window's tokens of it.

    Sums are float32. Heads share keys and values in groups: query head h reads kv head h // (heads / kv_heads). Cache
    entries past a context are never read, NaN or not. The launch depends on shapes alone, so a CUDA graph can replay it
    on other requests. The same inputs give the same result to the bit.

    Args:
        out, q: [num_rows, heads, head_dim] of one dtype. Rows of no tile are not written.
        keys, values: [num_pages, page_size, kv_heads, head_dim], strided views of one layer of the cache.
        pages: int32 [any number]: the pages of all requests; pages that no request uses are not read.
        tiles: int32 [shape.num_words], filled by `shape.fill`.
        workspace: made for this shape, and maybe others.
        soft_cap: scores s become soft_cap * tanh(s / soft_cap), as in Gemma 2; None leaves them.
        pdl: on CUDA, start while the kernel before this one on the stream ends; that must not write pages or tiles.

    Raises ValueError, naming the argument, when the shapes do not fit.
    """
    _check(out, q, keys, values, pages, tiles, shape, workspace)
    if q.is_cuda:
        from punica_kernels.gpu import paged_attention as kernels

        require_dense_rows(out=out, q=q, keys=keys, values=values, pages=pages, tiles=tiles)
        kernels.paged_attention(out, q, keys, values, pages, tiles, shape, workspace, scale, soft_cap, pdl=pdl)
    else:
        _paged_attention(out, q, keys, values, pages, tiles, shape, _Scores(scale, soft_cap, shape.window))


class _Scores(NamedTuple):
    """How scores are made and hidden."""

    scale: float
    soft_cap: float | None
    window: int | None


def _paged_attention(
    out: Tensor,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    pages: Tensor,
    tiles: Tensor,
    shape: AttentionShape,
    scores: _Scores,
) -> None:
    """All splits of some rows' context at once: `tiles` lists the longest first, not in the order of the context."""
    for rows, splits in _splits_of_rows(tiles, shape):
        splits.sort(key=itemgetter(WorkTileField.SPLIT))
        places = ((split[WorkTileField.FIRST_PAGE], split[WorkTileField.NUM_TOKENS]) for split in splits)
        cells = torch.cat([_cells(pages, first_page, tokens, keys.shape[1]) for first_page, tokens in places])
        *earlier, last = splits
        first_visible = last[WorkTileField.LAST_VISIBLE] + sum(split[WorkTileField.NUM_TOKENS] for split in earlier)
        last_visible = first_visible + torch.arange(len(rows), device=q.device)
        k, v = (pool[cells // keys.shape[1], cells % keys.shape[1]] for pool in (keys, values))
        out[rows] = _attend(q[rows], k, v, last_visible, scores).to(out.dtype)


def _splits_of_rows(tiles: Tensor, shape: AttentionShape) -> list[tuple[list[int], list[list[int]]]]:
    """Query rows of one request, and the tiles of what they see. In a table with shared prefixes a request has one."""
    num_words = shape.max_tiles * shape.tile_words
    table = tiles[:num_words].view(-1, shape.tile_words).tolist()
    used = [tile for tile in table if tile[WorkTileField.FIRST_ROW] >= 0]
    listed = tiles[num_words:].view(-1, ROW_WORDS)[:, RowField.ROW].tolist()
    found: dict[tuple[int, ...], list[list[int]]] = defaultdict(list)
    for tile in used:
        places = range(tile[WorkTileField.FIRST_ROW], tile[WorkTileField.FIRST_ROW] + tile[WorkTileField.NUM_ROWS])
        if shape.shares_prefixes:
            for place in places:
                found[(listed[place],)].append(tile)
        else:
            found[tuple(places)].append(tile)
    return [([*rows], splits) for rows, splits in found.items()]


def _cells(pages: Tensor, first_page: int, num_tokens: int, page_size: int) -> Tensor:
    """int64 [tokens]: page * page_size + offset of each."""
    tokens = torch.arange(num_tokens, device=pages.device)
    return pages[first_page + tokens // page_size].long() * page_size + tokens % page_size


def _attend(q: Tensor, k: Tensor, v: Tensor, last_visible: Tensor, how: _Scores) -> Tensor:
    """q [rows, heads, head_dim], k and v [context, kv_heads, head_dim], last_visible [rows] -> float32, like q."""
    num_rows, heads, head_dim = q.shape
    context, kv_heads, _ = k.shape
    groups = q.float().view(num_rows, kv_heads, heads // kv_heads, head_dim)
    scores = torch.einsum("rkgd,ckd->kgrc", groups, k.float()) * how.scale
    if how.soft_cap is not None:
        scores = torch.tanh(scores / how.soft_cap) * how.soft_cap
    tokens = torch.arange(context, device=q.device)
    hidden = tokens > last_visible[:, None]
    if how.window is not None:
        hidden |= tokens <= last_visible[:, None] - how.window
    probs = scores.masked_fill_(hidden, -torch.inf).softmax(-1)
    return torch.einsum("kgrc,ckd->rkgd", probs, v.float()).reshape(q.shape)


def _check(
    out: Tensor,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    pages: Tensor,
    tiles: Tensor,
    shape: AttentionShape,
    workspace: AttentionWorkspace,
) -> None:
    head_dim = q.shape[2]
    require_shape("q", q, len(q), shape.heads, head_dim)
    require_shape("out", out, *q.shape)
    require_shape("keys", keys, *keys.shape[:2], shape.kv_heads, head_dim)
    require_shape("values", values, *keys.shape)
    require_shape("pages", pages, len(pages))
    require_shape("tiles", tiles, shape.num_words)
    num_splits = shape.max_splits * shape.kv_heads
    num_rows = num_splits * shape.block_m
    needed = {"acc": num_rows * head_dim, "m_and_l": 2 * num_rows, "counts": num_splits}
    for name, numel in needed.items():
        if getattr(workspace, name).numel() < numel:
            raise ValueError(f"workspace must have {name} of {numel} or more, got {getattr(workspace, name).numel()}")
