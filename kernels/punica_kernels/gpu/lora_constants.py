"""Sizes and fields of the table that SGMV's kernels share, for the compiler (`punica_kernels.lora_table`)."""

import triton.language as tl

from punica_kernels import lora_table
from punica_kernels.lora_table import ExpandTileField, RankBlockField

TILE_ROWS = tl.constexpr(lora_table.TILE_ROWS)
PAGE_RANKS = tl.constexpr(lora_table.PAGE_RANKS)
BLOCK_PAGES = tl.constexpr(lora_table.BLOCK_PAGES)
BLOCK_RANKS = tl.constexpr(lora_table.BLOCK_RANKS)

# A rank block's words, which the shrinks read.
RANK_BLOCK_WORDS = tl.constexpr(lora_table.RANK_BLOCK_WORDS)
BLOCK_FIRST_ROW = tl.constexpr(RankBlockField.FIRST_ROW)
BLOCK_NUM_ROWS = tl.constexpr(RankBlockField.NUM_ROWS)
BLOCK_NUMBER = tl.constexpr(RankBlockField.NUMBER)
FIRST_BLOCK_PAGE = tl.constexpr(RankBlockField.PAGES)
BLOCK_ARRIVED = tl.constexpr(RankBlockField.ARRIVED)

# A tile's words, which the expand reads.
TILE_HEADER_WORDS = tl.constexpr(lora_table.TILE_HEADER_WORDS)
TILE_FIRST_ROW = tl.constexpr(ExpandTileField.FIRST_ROW)
TILE_NUM_ROWS = tl.constexpr(ExpandTileField.NUM_ROWS)
NUM_RANK_BLOCKS = tl.constexpr(ExpandTileField.NUM_RANK_BLOCKS)
FIRST_COLUMN_BLOCK = tl.constexpr(ExpandTileField.FIRST_COLUMN_BLOCK)
COLUMN_BLOCK_STEP = tl.constexpr(ExpandTileField.COLUMN_BLOCK_STEP)
WIDE_TILES = tl.constexpr(ExpandTileField.WIDE_TILES)
NUM_TILES = tl.constexpr(ExpandTileField.NUM_TILES)
ROWS_IN_TURN = tl.constexpr(lora_table.ROWS_IN_TURN)
