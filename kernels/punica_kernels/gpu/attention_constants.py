"""Numbers that attention kernels read as constants: the words of their tables, and the lowest score."""

import triton.language as tl

from punica_kernels.tile_fields import ROW_WORDS, RowField, WorkTileField

#: Below every score. It is finite, so that a row that sees nothing of a split gets weights of zero and no NaN.
MIN_SCORE = tl.constexpr(-3e38)

FIRST_ROW = tl.constexpr(WorkTileField.FIRST_ROW)
NUM_ROWS = tl.constexpr(WorkTileField.NUM_ROWS)
FIRST_PAGE = tl.constexpr(WorkTileField.FIRST_PAGE)
NUM_TOKENS = tl.constexpr(WorkTileField.NUM_TOKENS)
LAST_VISIBLE = tl.constexpr(WorkTileField.LAST_VISIBLE)
SPLIT = tl.constexpr(WorkTileField.SPLIT)
FIRST_SPLIT = tl.constexpr(WorkTileField.FIRST_SPLIT)
NUM_SPLITS = tl.constexpr(WorkTileField.NUM_SPLITS)

BLOCK_FIRST_ROW = tl.constexpr(WorkTileField.BLOCK_FIRST_ROW)
BLOCK_NUM_ROWS = tl.constexpr(WorkTileField.BLOCK_NUM_ROWS)
LISTED_ROW = tl.constexpr(RowField.ROW)
LISTED_SPLITS = tl.constexpr(RowField.NUM_SPLITS)
LIST_STRIDE = tl.constexpr(ROW_WORDS)
