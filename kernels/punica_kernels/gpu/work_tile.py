"""The share of one program of `_paged_attention`: its work tile, the rows in it, and its sizes.

Kernels build these tuples by keyword and read them by name: the compiler's cache does not see the order of fields.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from punica_kernels.gpu.attention_constants import (
    BLOCK_FIRST_ROW,
    BLOCK_NUM_ROWS,
    FIRST_PAGE,
    FIRST_SPLIT,
    LAST_VISIBLE,
    LIST_STRIDE,
    LISTED_ROW,
    NUM_ROWS,
    NUM_SPLITS,
    NUM_TOKENS,
    SPLIT,
)


class Sizes(NamedTuple):
    """The sizes that a program is compiled for. The launch has the reasons (`punica_kernels.gpu.attention_config`)."""

    HEAD_DIM: tl.constexpr
    PAGE_SIZE: tl.constexpr
    KV_HEADS: tl.constexpr
    #: Query heads of one kv head, and the next power of two.
    GROUP: tl.constexpr
    BLOCK_GROUP: tl.constexpr
    #: Rows, tokens and columns of a block; the first LIVE_M rows are the ones that requests can fill.
    BLOCK_M: tl.constexpr
    BLOCK_N: tl.constexpr
    BLOCK_D: tl.constexpr
    LIVE_M: tl.constexpr
    STAGES: tl.constexpr
    WINDOW: tl.constexpr
    MERGED_SPLITS: tl.constexpr
    SHARES_PREFIXES: tl.constexpr


class WorkTile(NamedTuple):
    """The words of a tile in the table (`punica_kernels.tile_fields`)."""

    first_row: tl.tensor
    num_rows: tl.tensor
    #: The page numbers of its tokens.
    pages: tl.tensor
    num_tokens: tl.tensor
    #: The last token that the first row sees.
    last_visible: tl.tensor
    split: tl.tensor
    first_split: tl.tensor
    num_splits: tl.tensor
    #: The rows of the block that the splits are merged for: those of the tile, unless prefixes are shared.
    block_first_row: tl.tensor
    block_num_rows: tl.tensor


class Heads(NamedTuple):
    """Queries or results, [rows, heads, HEAD_DIM]: where the first one is, and the strides."""

    first: tl.tensor
    row_stride: tl.tensor
    head_stride: tl.tensor


class TileRows(NamedTuple):
    """Rows of a program: query rows times the query heads that share its kv head."""

    #: int32 [rows]: which query row of the tile, and which head of the group.
    query: tl.tensor
    member: tl.tensor
    #: bool [rows] and [rows, BLOCK_D]: whether there is such a row, and such a number.
    is_row: tl.tensor
    mask: tl.tensor


@triton.jit
def load_work_tile(words, first_row, pages, SHARES_PREFIXES: tl.constexpr):
    """The tile at `words`, whose first word is there already."""
    num_rows = tl.load(words + NUM_ROWS)
    pages += tl.load(words + FIRST_PAGE)
    num_tokens = tl.load(words + NUM_TOKENS)
    last_visible = tl.load(words + LAST_VISIBLE)
    split = tl.load(words + SPLIT)
    first_split = tl.load(words + FIRST_SPLIT)
    num_splits = tl.load(words + NUM_SPLITS)
    return WorkTile(
        first_row=first_row,
        num_rows=num_rows,
        pages=pages,
        num_tokens=num_tokens,
        last_visible=last_visible,
        split=split,
        first_split=first_split,
        num_splits=num_splits,
        block_first_row=tl.load(words + BLOCK_FIRST_ROW) if SHARES_PREFIXES else first_row,
        block_num_rows=tl.load(words + BLOCK_NUM_ROWS) if SHARES_PREFIXES else num_rows,
    )


@triton.jit
def load_listed_rows(row_list, tile, sizes: tl.constexpr):
    """int32 [BLOCK_M]: the query row of each row of a tile, from its place in the table's list."""
    place = tile.first_row + tl.arange(0, sizes.BLOCK_M) // sizes.BLOCK_GROUP
    mask = place < tile.first_row + tile.num_rows
    return tl.load(row_list + place * LIST_STRIDE + LISTED_ROW, mask=mask, other=0)


@triton.jit
def tile_rows(num_rows, NUM: tl.constexpr, sizes: tl.constexpr):
    """The first NUM rows of a program with `num_rows` query rows."""
    offs_m = tl.arange(0, NUM)
    offs_d = columns(sizes)
    query = offs_m // sizes.BLOCK_GROUP
    member = offs_m % sizes.BLOCK_GROUP
    is_row = (query < num_rows) & (member < sizes.GROUP)
    mask = is_row[:, None] & (offs_d < sizes.HEAD_DIM)
    return TileRows(query=query, member=member, is_row=is_row, mask=mask)


@triton.jit
def head_cells(heads, row, kv_head, rows, sizes: tl.constexpr):
    """[BLOCK_M, BLOCK_D]: where the numbers of a tile's rows are. row: int64 [BLOCK_M, 1], the query row of each."""
    head = (kv_head * sizes.GROUP + rows.member)[:, None]
    return heads.first + row * heads.row_stride + head * heads.head_stride + columns(sizes)


@triton.jit
def columns(sizes: tl.constexpr):
    """int32 [1, BLOCK_D]: the numbers of a head."""
    return tl.arange(0, sizes.BLOCK_D)[None, :]
