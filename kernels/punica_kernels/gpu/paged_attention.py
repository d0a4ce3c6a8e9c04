"""Paged attention in Triton, with the online softmax of FlashAttention (Dao et al., 2022).

One program takes one work tile: BLOCK_M rows (query rows times the query heads that share one kv head) and one split of
their context. The program of a split context that ends last merges the splits, always in the same order.

In a table with shared prefixes (SHARES_PREFIXES) the rows of a tile are places in the table's list of rows, each the
only row of its request. The program of a block that ends last, whether over the prefix or over one row's own context,
merges all rows of the block, each row's splits in the order of its context.
`punica_kernels.paged_attention` checks the arguments and documents the shapes.
"""

import math
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from punica_kernels.attention_tiles import AttentionShape, AttentionWorkspace
from punica_kernels.gpu.attention_config import (
    block_d,
    hopper_config,
    hopper_prompts_config,
    is_for_hopper,
    is_for_hopper_prompts,
    triton_config,
)
from punica_kernels.gpu.attention_constants import FIRST_ROW
from punica_kernels.gpu.attention_splits import Splits, write_rows
from punica_kernels.gpu.launch import num_multiprocessors
from punica_kernels.gpu.online_softmax import Cache, Scoring, attend
from punica_kernels.gpu.pdl import await_predecessors, pdl_options, start_dependents
from punica_kernels.gpu.work_tile import Heads, Sizes, head_cells, load_listed_rows, load_work_tile, tile_rows

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
    tensors = (out, q, keys, values, pages, tiles, workspace.acc, *workspace.m_and_l, workspace.counts)
    scales = (
        scale * _LOG2_E if soft_cap is None else scale / soft_cap,
        None if soft_cap is None else soft_cap * _LOG2_E,
    )
    arguments = (*tensors, *scales, *out.stride()[:2], *q.stride()[:2])
    sizes = {
        "TILE_WORDS": shape.tile_words,
        "HEAD_DIM": q.shape[2],
        "PAGE_SIZE": keys.shape[1],
        "KV_HEADS": shape.kv_heads,
        "GROUP": shape.heads // shape.kv_heads,
        "BLOCK_GROUP": shape.block_group,
        "WINDOW": shape.window or 0,
        **pdl_options(q.device, wait=pdl),
    }
    if is_for_hopper_prompts(q, keys, values, shape):
        _launch_hopper_prompts((*arguments, *_strides_in_rows(keys)), sizes, shape, q)
    elif is_for_hopper(q, keys, values, shape.block_m):
        _launch_hopper((*arguments, *_strides_in_rows(keys)), sizes, shape)
    else:
        _launch_triton((*arguments, *keys.stride()[:3], *values.stride()[:3]), sizes, shape, q)


def _launch_hopper_prompts(arguments: tuple[Any, ...], sizes: dict[str, Any], shape: AttentionShape, q: Tensor) -> None:
    from punica_kernels.gpu.hopper_prompts import hopper_prompts

    programs = (min(num_multiprocessors(q.device), shape.kv_heads * shape.max_tiles),)
    blocks = hopper_prompts_config(q.shape[2])._asdict()
    hopper_prompts[programs](*arguments, shape.max_tiles, **sizes, **blocks)


def _launch_hopper(arguments: tuple[Any, ...], sizes: dict[str, Any], shape: AttentionShape) -> None:
    from punica_kernels.gpu.hopper_attention import hopper_attention

    blocks = hopper_config(shape)._asdict()
    hopper_attention[shape.kv_heads, shape.max_tiles](*arguments, **sizes, BLOCK_M=shape.block_m, **blocks)


def _launch_triton(arguments: tuple[Any, ...], sizes: dict[str, Any], shape: AttentionShape, q: Tensor) -> None:
    _paged_attention[shape.kv_heads, shape.max_tiles](
        *arguments,
        **sizes,
        BLOCK_M=shape.block_m,
        BLOCK_D=block_d(q.shape[2]),
        LIVE_M=shape.live_m,
        SHARES_PREFIXES=shape.shares_prefixes,
        **triton_config(shape, q.shape[2], q.element_size())._asdict(),
    )


def _strides_in_rows(cache: Tensor) -> tuple[int, ...]:
    """Strides of pages, slots and heads, in rows of a head."""
    return tuple(stride // cache.shape[3] for stride in cache.stride()[:3])


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
    sizes: tl.constexpr = Sizes(
        HEAD_DIM=HEAD_DIM,
        PAGE_SIZE=PAGE_SIZE,
        KV_HEADS=KV_HEADS,
        GROUP=GROUP,
        BLOCK_GROUP=BLOCK_GROUP,
        BLOCK_M=BLOCK_M,
        BLOCK_N=BLOCK_N,
        BLOCK_D=BLOCK_D,
        LIVE_M=LIVE_M,
        STAGES=STAGES,
        WINDOW=WINDOW,
        MERGED_SPLITS=MERGED_SPLITS,
        SHARES_PREFIXES=SHARES_PREFIXES,
    )
    kv_head = tl.program_id(0)
    row_list = tiles + tl.num_programs(1) * TILE_WORDS if SHARES_PREFIXES else tiles
    words = tiles + tl.program_id(1) * TILE_WORDS
    first_row = tl.load(words + FIRST_ROW)
    if first_row < 0:
        await_predecessors(PDL_WAIT)
        return
    tile = load_work_tile(words, first_row, pages, SHARES_PREFIXES)
    listed_row = load_listed_rows(row_list, tile, sizes) if SHARES_PREFIXES else first_row
    cache = Cache(
        k=keys + kv_head * key_head_stride,
        v=values + kv_head * value_head_stride,
        pages=tile.pages,
        num_tokens=tile.num_tokens,
        key_page_stride=key_page_stride,
        key_slot_stride=key_slot_stride,
        value_page_stride=value_page_stride,
        value_slot_stride=value_slot_stride,
    )
    await_predecessors(PDL_WAIT)
    start_dependents(PDL_TRIGGER)

    rows = tile_rows(tile.num_rows, BLOCK_M, sizes)
    row = (listed_row if SHARES_PREFIXES else first_row + rows.query).to(tl.int64)[:, None]
    queries = Heads(first=q, row_stride=q_row_stride, head_stride=q_head_stride)
    scoring = Scoring(
        queries=tl.load(head_cells(queries, row, kv_head, rows, sizes), mask=rows.mask, other=0.0),
        last_visible=_last_visible(tile, rows.query, SHARES_PREFIXES),
        scale=scale,
        log2_soft_cap=log2_soft_cap,
    )
    sums = attend(cache, scoring, tile, sizes)

    target = Heads(first=out, row_stride=out_row_stride, head_stride=out_head_stride)
    splits = Splits(acc=split_acc, m_i=split_m, l_i=split_l, counts=counts)
    write_rows(target, row, row_list, splits, sums, kv_head, tile, rows, sizes)


@triton.jit
def _last_visible(tile, query, SHARES_PREFIXES: tl.constexpr):
    """int32 [BLOCK_M]: the last token that each row sees."""
    if SHARES_PREFIXES:
        # Rows of several requests see all of their prefix.
        return tile.last_visible + tl.zeros_like(query)
    else:
        # Unused rows see what the last one sees: something, so that nothing is divided by zero.
        return tile.last_visible + tl.minimum(query, tile.num_rows - 1)
