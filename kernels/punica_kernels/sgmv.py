"""Segmented gather matrix-vector multiplication (SGMV): y += x A B with a different A and B per segment of rows.

Punica (Chen et al., MLSys 2024), section 4: with v = x A (shrink, h_in -> r) and y += v B (expand, r -> h_out), rows of
different LoRA models share one batched operator. One row per segment is the paper's BGMV case. Here the ranks differ
between adapters, and the weights of an adapter are scattered over pages of P rank rows each (P = 8 in this project;
read from the pool's shape):

    v[row, s, P j + i]       = sum_k x[row, k] * a_pages[page_j, s, i, k]
    y[row, o_s : o_(s + 1)] += sum_r v[row, s, r] * b_pages[page_(r // P), r % P, o_s : o_(s + 1)]

where page_j is the j-th page of the row's adapter and s counts the stacked slices (q, k, v; gate, up; or one), whose
outputs lie at [o_s, o_(s + 1)). The pool's B has the scaling folded in, and rank rows beyond an adapter's rank are
zero. Products are summed in float32 whatever the tensors' dtype. The cost is that of each row's own pages.

The caller owns every buffer. The pools may be strided views of one layer, and so may x, y and v.

These are the operators in torch, for any device: the reference of the GPU kernels. The kernels need two launches that a
CUDA graph can hold, with another index and another v, and so have functions of their own: `punica_kernels.gpu.sgmv`.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from punica_kernels.segments import SegmentIndex, TileGroup

# Weights gathered at a time, in elements. Beyond some megabytes the gathered copy leaves the cache and each call
# asks the system for fresh memory, which costs more than the product.
_GATHER_ELEMENTS = 1 << 20


def sgmv_shrink(v: Tensor, x: Tensor, a_pages: Tensor, index: SegmentIndex) -> None:
    """v = x A for the rows of `index` that have LoRA; other rows, and ranks past a row's pages, are left as they are.

    Args:
        v: float32 [>= num_rows, S, >= max_pages * P].
        x: [num_rows, h_in].
        a_pages: [num_pages, S, P, h_in].
        index: the segments of this step in this group of projections.

    Raises ValueError, naming the argument, when the shapes or v's dtype do not fit.
    """
    _check_shrink(v, x, a_pages, index)
    _shrink(v, x, a_pages, index)


def sgmv_expand(
    y: Tensor, v: Tensor, b_pages: Tensor, out_offsets: Sequence[int], index: SegmentIndex, *, accumulate: bool = True
) -> None:
    """y += v B in place for the rows of `index` that have LoRA; the bits of other rows stay as they are.

    Without `accumulate` y = v B, and rows without LoRA become zero: the delta, for another operator to add.

    Args:
        y: [num_rows, h_out], all slices' outputs side by side.
        v: from `sgmv_shrink`.
        b_pages: [num_pages, P, h_out].
        out_offsets: S + 1 boundaries of the slices in h_out.
        index: the index that v was shrunk with.
        accumulate: whether y holds something to add to.

    Raises ValueError, naming the argument, when the shapes or v's dtype do not fit.
    """
    _check_expand(y, v, b_pages, out_offsets, index)
    if not accumulate:
        y.zero_()
    _expand(y, v, b_pages, out_offsets, index)


def add_lora(
    y: Tensor,
    x: Tensor,
    a_pages: Tensor,
    b_pages: Tensor,
    out_offsets: Sequence[int],
    index: SegmentIndex,
    v: Tensor,
) -> None:
    """y += x A B in place: shrink into the scratch buffer `v`, then expand. Nothing happens without LoRA rows.

    Shapes and errors are those of `sgmv_shrink` and `sgmv_expand`.
    """
    if not index.has_lora:
        return
    sgmv_shrink(v, x, a_pages, index)
    sgmv_expand(y, v, b_pages, out_offsets, index)


def add_embedding_lora(
    y: Tensor,
    token_ids: Tensor,
    a_pages: Tensor,
    b_pages: Tensor,
    index: SegmentIndex,
    v: Tensor,
    *,
    first_token: int = 0,
) -> None:
    """y += A's column of each row's token, times B, in place: ``add_lora`` for an embedding, whose x is one-hot.

    Args:
        token_ids: int64 [num_rows].
        a_pages: [num_pages, 1, P, tokens], the tokens from `first_token` on; others add nothing.
        b_pages: [num_pages, P, h_out].

    Other shapes and errors are those of `sgmv_shrink` and `sgmv_expand`.
    """
    if not index.has_lora:
        return
    _check_v(v, 1, a_pages.shape[2], index)
    page_ranks, num_tokens = a_pages.shape[2:]
    for group in index.tile_groups:
        tokens = token_ids[group.rows][:, :, None, None] - first_token
        known = (tokens >= 0) & (tokens < num_tokens)
        pages = group.pages[:, None, :, None]
        ranks = torch.arange(page_ranks, device=pages.device)
        columns = a_pages[pages, 0, ranks, tokens.clamp(0, num_tokens - 1)].float() * known
        v[group.rows.view(-1), 0, : group.pages.shape[1] * page_ranks] = columns.flatten(0, 1).flatten(1)
    sgmv_expand(y, v, b_pages, (0, b_pages.shape[2]), index)


def _shrink(v: Tensor, x: Tensor, a_pages: Tensor, index: SegmentIndex) -> None:
    _, num_slices, page_ranks, h_in = a_pages.shape
    for tile_rows, rows, pages in _chunks(index.tile_groups, num_slices * page_ranks * h_in):
        num_tiles, num_pages = pages.shape
        a = a_pages.index_select(0, pages.view(-1)).float().view(num_tiles, -1, h_in)
        tiles = x.index_select(0, rows).float().view(num_tiles, tile_rows, h_in)
        ranks = torch.bmm(tiles, a.transpose(1, 2)).view(-1, num_pages, num_slices, page_ranks).transpose(1, 2)
        v_pages = v[:, :, : num_pages * page_ranks].view(-1, num_slices, num_pages, page_ranks)
        v_pages.index_copy_(0, rows, ranks)


def _expand(y: Tensor, v: Tensor, b_pages: Tensor, out_offsets: Sequence[int], index: SegmentIndex) -> None:
    _, page_ranks, h_out = b_pages.shape
    for tile_rows, rows, pages in _chunks(index.tile_groups, page_ranks * h_out):
        num_tiles, num_pages = pages.shape
        num_ranks = num_pages * page_ranks
        b = b_pages.index_select(0, pages.view(-1)).float().view(num_tiles, num_ranks, h_out)
        tiles = v.index_select(0, rows)[:, :, :num_ranks].unflatten(0, (num_tiles, tile_rows))
        total = y.index_select(0, rows).float()
        for s, (start, end) in enumerate(pairwise(out_offsets)):
            total[:, start:end] += torch.bmm(tiles[:, :, s], b[:, :, start:end]).flatten(0, 1)
        y.index_copy_(0, rows, total.to(y.dtype))


def _chunks(tile_groups: Sequence[TileGroup], page_elements: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(rows per tile, flat rows, pages [tiles, num_pages]) of runs of tiles whose weights fit _GATHER_ELEMENTS."""
    for group in tile_groups:
        num_tiles = max(1, _GATHER_ELEMENTS // (group.pages.shape[1] * page_elements))
        for rows, pages in zip(torch.split(group.rows, num_tiles), torch.split(group.pages, num_tiles), strict=True):
            yield group.tile_rows, rows.view(-1), pages


def _check_shrink(v: Tensor, x: Tensor, a_pages: Tensor, index: SegmentIndex) -> None:
    if a_pages.dim() != 4:
        raise ValueError(f"a_pages must be [num_pages, slices, page ranks, h_in], got {list(a_pages.shape)}")
    _, num_slices, page_ranks, h_in = a_pages.shape
    if x.shape != (index.num_rows, h_in):
        raise ValueError(f"x must be {[index.num_rows, h_in]}, got {list(x.shape)}")
    _check_v(v, num_slices, page_ranks, index)


def _check_expand(y: Tensor, v: Tensor, b_pages: Tensor, out_offsets: Sequence[int], index: SegmentIndex) -> None:
    if b_pages.dim() != 3:
        raise ValueError(f"b_pages must be [num_pages, page ranks, h_out], got {list(b_pages.shape)}")
    _, page_ranks, h_out = b_pages.shape
    if y.shape != (index.num_rows, h_out):
        raise ValueError(f"y must be {[index.num_rows, h_out]}, got {list(y.shape)}")
    if len(out_offsets) < 2 or out_offsets[0] != 0 or out_offsets[-1] != h_out:
        raise ValueError(f"out_offsets must run from 0 to h_out = {h_out}, got {list(out_offsets)}")
    _check_v(v, len(out_offsets) - 1, page_ranks, index)


def _check_v(v: Tensor, num_slices: int, page_ranks: int, index: SegmentIndex) -> None:
    if v.dtype != torch.float32:
        raise ValueError(f"v must be float32, got {v.dtype}")
    num_ranks = index.max_pages * page_ranks
    if v.dim() != 3 or v.shape[0] < index.num_rows or v.shape[1] != num_slices or v.shape[2] < num_ranks:
        raise ValueError(
            f"v must be at least {[index.num_rows, num_slices, num_ranks]} with exactly {num_slices} slices, "
            f"got {list(v.shape)}"
        )
