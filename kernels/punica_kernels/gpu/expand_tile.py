"""The loads of SGMV's expand: the words of a tile, and the weights on the tile's pages."""

from typing import NamedTuple

import triton
import triton.language as tl

from punica_kernels.gpu.lora_constants import (
    BLOCK_PAGES,
    BLOCK_RANKS,
    COLUMN_BLOCK_STEP,
    FIRST_COLUMN_BLOCK,
    NUM_RANK_BLOCKS,
    PAGE_RANKS,
    TILE_FIRST_ROW,
    TILE_HEADER_WORDS,
    TILE_NUM_ROWS,
)


# The kernel builds these tuples by keyword: the compiler's cache does not see the order of fields.
class ExpandSizes(NamedTuple):
    """The sizes that a program is compiled for (`punica_kernels.gpu.sgmv_config.ExpandConfig`)."""

    H_OUT: tl.constexpr
    #: Numbers of a row of v: slices, splits and ranks.
    V_ROW: tl.constexpr
    MAX_RANKS: tl.constexpr
    SPLIT_K: tl.constexpr
    #: Most rows in a tile.
    TILE_ROWS: tl.constexpr
    BLOCK_N: tl.constexpr
    TILE_N: tl.constexpr
    LOG2_BLOCKS: tl.constexpr
    #: Whether each slice's outputs are whole blocks.
    EVEN_N: tl.constexpr
    ACCUMULATE: tl.constexpr
    PDL_WAIT: tl.constexpr


class ExpandTile(NamedTuple):
    """The words of a tile in the table."""

    first_row: tl.tensor
    num_rows: tl.tensor
    #: 0 without LoRA, and less in a tile without rows.
    num_rank_blocks: tl.tensor
    first_block: tl.tensor
    block_step: tl.tensor
    #: Where its page numbers are, and the first two.
    pages: tl.tensor
    page_0: tl.tensor
    page_1: tl.tensor


@triton.jit
def load_tile(words):
    """The tile at `words`. All header words are loaded at once, to avoid dependent loads."""
    first_row = tl.load(words + TILE_FIRST_ROW).to(tl.int64)
    num_rows = tl.load(words + TILE_NUM_ROWS)
    num_rank_blocks = tl.load(words + NUM_RANK_BLOCKS)
    first_block = tl.load(words + FIRST_COLUMN_BLOCK)
    block_step = tl.load(words + COLUMN_BLOCK_STEP)
    pages = words + TILE_HEADER_WORDS
    return ExpandTile(
        first_row=first_row,
        num_rows=num_rows,
        num_rank_blocks=num_rank_blocks,
        first_block=first_block,
        block_step=block_step,
        pages=pages,
        page_0=tl.load(pages),
        page_1=tl.load(pages + 1),
    )


@triton.jit
def load_first_blocks(b, tile, blocks_left, page_stride, inside, BLOCKS: tl.constexpr, sizes: tl.constexpr):
    """[ranks, outputs] of a tile's first BLOCKS rank blocks, of which it has `blocks_left`."""
    return _load_pages(b, tile.page_0, tile.page_1, tile.pages, blocks_left, page_stride, inside, BLOCKS, sizes)


@triton.jit
def load_blocks(b, tile, block, end_block, page_stride, inside, BLOCKS: tl.constexpr, sizes: tl.constexpr):
    """The same from rank block `block` on, up to `end_block`."""
    pages = tile.pages + block * BLOCK_PAGES
    page_0, page_1 = tl.load(pages), tl.load(pages + 1)
    return _load_pages(b, page_0, page_1, pages, end_block - block, page_stride, inside, BLOCKS, sizes)


@triton.jit
def _load_pages(
    b,
    page_0,
    page_1,
    pages,
    blocks_left,
    page_stride,
    inside,
    BLOCKS: tl.constexpr,
    sizes: tl.constexpr,
):
    """[ranks, outputs] of BLOCKS rank blocks, whose page numbers are page_0, page_1 and then those at ``pages`` + 2.

    Zeros, without reading a byte, past the last page and the last block.
    """
    ranks = tl.arange(0, BLOCKS * BLOCK_RANKS)
    page = tl.where(ranks < PAGE_RANKS, page_0, page_1)
    for number in tl.static_range(BLOCK_PAGES, BLOCKS * BLOCK_PAGES):
        # Past a tile's last rank block lie other words of the table: their values do not matter.
        page = tl.where(ranks // PAGE_RANKS == number, tl.load(pages + number), page)
    used = ((page >= 0) & (ranks // BLOCK_RANKS < blocks_left))[:, None]
    rows = page.to(tl.int64) * page_stride + (ranks % PAGE_RANKS) * sizes.H_OUT
    if sizes.EVEN_N:
        return tl.load(b[None, :] + rows[:, None], mask=used, other=0.0)
    return tl.load(b[None, :] + rows[:, None], mask=used & inside[None, :], other=0.0)
