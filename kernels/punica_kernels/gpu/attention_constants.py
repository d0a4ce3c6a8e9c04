"""Numbers that attention kernels read as constants: the words of their tables, and the lowest score."""

import triton.language as tl

from punica_kernels.tile_fields import ROW_WORDS, RowField, TileField

#: Below every score. It is finite, so that a row that sees nothing of a split gets weights of zero and no NaN.
MIN_SCORE = tl.constexpr(-3e38)

FIRST_ROW = tl.constexpr(TileField.FIRST_ROW)
NUM_ROWS = tl.constexpr(TileField.NUM_ROWS)
FIRST_PAGE = tl.constexpr(TileField.FIRST_PAGE)
NUM_TOKENS = tl.constexpr(TileField.NUM_TOKENS)
LAST_VISIBLE = tl.constexpr(TileField.LAST_VISIBLE)
SPLIT = tl.constexpr(TileField.SPLIT)
FIRST_SPLIT = tl.constexpr(TileField.FIRST_SPLIT)
NUM_SPLITS = tl.constexpr(TileField.NUM_SPLITS)

BLOCK_FIRST_ROW = tl.constexpr(TileField.BLOCK_FIRST_ROW)
BLOCK_NUM_ROWS = tl.constexpr(TileField.BLOCK_NUM_ROWS)
LISTED_ROW = tl.constexpr(RowField.ROW)
LISTED_SPLITS = tl.constexpr(RowField.NUM_SPLITS)
LIST_STRIDE = tl.constexpr(ROW_WORDS)
