"""The LoRA segments of a step as an int32 table: the index that the SGMV kernels of a GPU read.

A CUDA graph replays the same launches whatever the data says, so a table's size and the grids depend only on its
`LoraTableShape`. The host writes a step's segments into it and copies it to the device. It holds two lists:

- tiles, for the expand: runs of at most `tile_rows` rows of one segment, with their adapter's pages, highest ranks
  first. A tile without pages marks rows without LoRA. Every row below max_rows is in one tile. If there are entries to
  spare, several of them share the columns of one tile of `TILE_ROWS`. In a table for long prompts tiles of one row come
  last, and `ROWS_IN_TURN` of them take the programs of one tile.
- rank blocks, for the shrink: one for each tile and each two of its pages (16 rank rows), so that the work of a step
  with mixed ranks falls into equal shares. A block counts the programs that have left their partial sums; the last one
  sets the count back to zero.

Unused entries are -1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import numpy as np
import numpy.typing as npt
from torch import Tensor

from punica_kernels.members import Indices, enumerate_members

#: Most rows in a tile: the height of the smallest tensor-core product.
TILE_ROWS = 16
#: Most rows in a tile of a table for long prompts, which reads the weights of an adapter less often.
PROMPT_TILE_ROWS = 64
#: Long prompts have so many rows besides one for each segment: those of the batch bucket of 512 have, and were measured
#: to gain in large tiles. Those of the next smaller bucket, 448, were not measured and have not.
LONG_PROMPT_ROWS = 448
#: Tiles of one row that the programs of one tile take at a time, beside long prompts: such a row has little work.
ROWS_IN_TURN = 8
#: Rank rows of a page.
PAGE_RANKS = 8
#: Pages of a rank block: 16 rank rows, the width of the smallest tensor-core product.
BLOCK_PAGES = 2
#: Rank rows of a rank block.
BLOCK_RANKS = BLOCK_PAGES * PAGE_RANKS
#: Most pages of an adapter in one group: rank 256.
MAX_RANK_PAGES = 32
#: Most tiles of a small table.
SMALL_TABLE_TILES = 32
#: Most entries that share the columns of a tile of several rows: an expand program has no more blocks of columns.
MAX_COLUMN_SPLITS = 2


class ExpandTileField:
    """The words of an expand's tile before its pages, for the host that writes them and the kernel that reads them."""

    FIRST_ROW = 0
    NUM_ROWS = 1
    NUM_RANK_BLOCKS = 2
    #: The entry's first block of columns, and the step to its next one.
    FIRST_COLUMN_BLOCK = 3
    COLUMN_BLOCK_STEP = 4
    #: In the first tile of a table: how many tiles have several rows, and how many tiles there are.
    WIDE_TILES = 5
    NUM_TILES = 6


#: Words of a tile before its pages.
TILE_HEADER_WORDS = 7


class RankBlockField:
    """The words of a rank block."""

    FIRST_ROW = 0
    NUM_ROWS = 1
    #: The block's index in the adapter's rank order.
    NUMBER = 2
    #: BLOCK_PAGES page numbers from here on; -1 is no page.
    PAGES = 3
    #: Programs of a shrink that have left their partial sums. Zero between launches.
    ARRIVED = 5


#: Words of a rank block, the last ones unused: blocks are aligned to 32 bytes.
RANK_BLOCK_WORDS = 8

Words = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class LoraTableShape:
    """The capacity of a table, which fixes its size and the kernels' grids."""

    max_rows: int
    max_segments: int
    #: Most pages that an adapter has in this group.
    max_rank_pages: int

    def __post_init__(self) -> None:
        if self.max_rows < 1 or self.max_segments < 1:
            raise ValueError(f"a table holds at least one row and one segment, got {self}")
        if not 1 <= self.max_rank_pages <= MAX_RANK_PAGES:
            raise ValueError(f"max_rank_pages must be 1 to {MAX_RANK_PAGES}, got {self.max_rank_pages}")

    @property
    def holds_long_prompts(self) -> bool:
        """Whether so many rows share segments that most tiles of a step are full."""
        return self.max_rows - self.max_segments >= LONG_PROMPT_ROWS

    @property
    def tile_rows(self) -> int:
        """Most rows in a tile."""
        return PROMPT_TILE_ROWS if self.holds_long_prompts else TILE_ROWS

    @property
    def max_tiles(self) -> int:
        """Every segment has at most one partial tile; the rows past the last segment are one more."""
        return min(self.max_rows, self.max_segments + 1 + self.max_rows // self.tile_rows)

    @property
    def usual_turns(self) -> int:
        """Turns of the tiles of a table for long prompts if all its segments but one have one row."""
        return self.max_rows // self.tile_rows + 1 + -(-self.max_segments // ROWS_IN_TURN)

    @property
    def max_tile_rank_blocks(self) -> int:
        """Rank blocks of the tile with the most pages."""
        return -(-self.max_rank_pages // BLOCK_PAGES)

    @property
    def max_ranks(self) -> int:
        """Rank rows of the workspace for each row of the batch."""
        return self.max_tile_rank_blocks * BLOCK_RANKS

    @property
    def max_rank_blocks(self) -> int:
        return self.max_tiles * self.max_tile_rank_blocks

    @property
    def tile_words(self) -> int:
        return TILE_HEADER_WORDS + self.max_tile_rank_blocks * BLOCK_PAGES

    @property
    def rank_blocks_start(self) -> int:
        """The word at which the rank blocks start."""
        return self.max_tiles * self.tile_words

    @property
    def num_words(self) -> int:
        """int32 words of one group's table."""
        return self.rank_blocks_start + self.max_rank_blocks * RANK_BLOCK_WORDS

    def fill(self, words: Words, indptr: Sequence[int], pages: Sequence[Sequence[int]]) -> None:
        """Write the segments [indptr[i], indptr[i + 1]), whose adapters have `pages[i]` in rank order.

        Args:
            words: int32 [num_words] on the host, overwritten.
            indptr: starts at 0 and never decreases; a segment may be empty.
            pages: one list for each segment; an empty one marks rows without LoRA.

        Raises ValueError when the segments do not fit the shape or each other.
        """
        if words.shape != (self.num_words,):
            raise ValueError(f"words must be [{self.num_words}], got {list(words.shape)}")
        layout = _lay_out(self, tuple(indptr), tuple(map(len, pages)))
        numbers = np.fromiter(chain(chain.from_iterable(pages), (-1,)), np.int32)
        words[:] = layout.words
        num_tiles, most_pages = layout.tile_pages.shape
        tiles, blocks = _tiles(self, words)[:num_tiles], _rank_blocks(self, words)[: len(layout.block_pages)]
        tiles[:, TILE_HEADER_WORDS : TILE_HEADER_WORDS + most_pages] = numbers[layout.tile_pages]
        blocks[:, RankBlockField.PAGES : RankBlockField.PAGES + BLOCK_PAGES] = numbers[layout.block_pages]


@dataclass(frozen=True, slots=True)
class LoraTable:
    """A filled table on the device."""

    #: int32 [shape.num_words]; a shrink that runs counts in it.
    words: Tensor
    shape: LoraTableShape


@dataclass(frozen=True, slots=True)
class _Layout:
    """A table but for its page numbers.

    A page is its index among the pages of all segments' adapters, one after the other; -1 is no page.
    """

    words: Words
    #: [tiles, most pages of one]
    tile_pages: Indices
    #: [rank blocks, BLOCK_PAGES]
    block_pages: Indices


# Groups of a step mostly differ in page numbers alone.
@lru_cache(maxsize=16)
def _lay_out(shape: LoraTableShape, indptr: tuple[int, ...], num_pages: tuple[int, ...]) -> _Layout:
    """The table of segments whose adapters have ``num_pages`` pages each."""
    # The rows past the last segment form one without LoRA.
    counts, bounds = np.array((*num_pages, 0)), np.array((*indptr, shape.max_rows))
    _check_segments(shape, bounds[:-1], counts[:-1])
    num_rows = bounds[1:] - bounds[:-1]
    order = np.argsort(-counts, kind="stable")
    place, nth = enumerate_members(-(-num_rows[order] // shape.tile_rows))
    segment, skipped = order[place], nth * shape.tile_rows
    rows = np.minimum(num_rows[segment] - skipped, shape.tile_rows)
    if shape.holds_long_prompts:
        by_width = np.argsort(rows == 1, kind="stable")
        segment, skipped, rows = segment[by_width], skipped[by_width], rows[by_width]
    first_row = bounds[segment] + skipped
    num_blocks = -(-counts // BLOCK_PAGES)
    most_blocks, num_rank_blocks = int(num_blocks.max()), num_blocks[segment]
    pages = _page_indices(counts, most_blocks)
    words = np.full(shape.num_words, -1, np.int32)
    tile, column_split, num_column_splits = _split_columns((rows > 1) & (num_rank_blocks > 0), shape)
    tiles = _tiles(shape, words)[: len(tile)]
    tiles[:, ExpandTileField.FIRST_ROW] = first_row[tile]
    tiles[:, ExpandTileField.NUM_ROWS] = rows[tile]
    tiles[:, ExpandTileField.NUM_RANK_BLOCKS] = num_rank_blocks[tile]
    tiles[:, ExpandTileField.FIRST_COLUMN_BLOCK] = column_split
    tiles[:, ExpandTileField.COLUMN_BLOCK_STEP] = num_column_splits
    tiles[0, ExpandTileField.WIDE_TILES] = np.count_nonzero(rows > 1)
    tiles[0, ExpandTileField.NUM_TILES] = len(rows)
    tile_pages = pages[segment[tile]].reshape(len(tile), most_blocks * BLOCK_PAGES)
    tile, nth = enumerate_members(num_rank_blocks)
    blocks = _rank_blocks(shape, words)[: len(tile)]
    blocks[:, RankBlockField.FIRST_ROW] = first_row[tile]
    blocks[:, RankBlockField.NUM_ROWS] = rows[tile]
    blocks[:, RankBlockField.NUMBER] = nth
    blocks[:, RankBlockField.ARRIVED] = 0
    return _Layout(words, tile_pages, pages[segment[tile], nth])


def _page_indices(counts: Indices, most_blocks: int) -> Indices:
    """[segments, most rank blocks of one, BLOCK_PAGES] The pages of segments of so many each; see ``_Layout``."""
    ordinals = np.arange(most_blocks * BLOCK_PAGES).reshape(most_blocks, BLOCK_PAGES)
    counts, firsts = counts[:, None, None], (np.cumsum(counts) - counts)[:, None, None]
    return np.where(ordinals < counts, firsts + ordinals, -1)


def _check_segments(shape: LoraTableShape, bounds: Indices, counts: Indices) -> None:
    if len(bounds) != len(counts) + 1 or bounds[0] != 0 or (bounds[1:] < bounds[:-1]).any():
        raise ValueError(f"indptr must rise from 0, one more than the {len(counts)} segments, got {bounds.tolist()}")
    if len(counts) > shape.max_segments or bounds[-1] > shape.max_rows:
        raise ValueError(f"{len(counts)} segments of {bounds[-1]} rows do not fit {shape}")
    if counts.max(initial=0) > shape.max_rank_pages:
        raise ValueError(f"an adapter of {counts.max()} pages does not fit {shape}")


def _tiles(shape: LoraTableShape, words: Words) -> Words:
    return words[: shape.rank_blocks_start].reshape(shape.max_tiles, shape.tile_words)


def _rank_blocks(shape: LoraTableShape, words: Words) -> Words:
    return words[shape.rank_blocks_start :].reshape(shape.max_rank_blocks, RANK_BLOCK_WORDS)


def _split_columns(wide: npt.NDArray[np.bool_], shape: LoraTableShape) -> tuple[Indices, Indices, Indices]:
    """(tile, column split, column splits) of each entry: small `wide` tiles are shared by as many entries as fit."""
    room = (shape.max_tiles - len(wide)) // max(1, int(np.count_nonzero(wide))) + 1
    most = 1 if shape.holds_long_prompts else MAX_COLUMN_SPLITS
    num_splits = np.where(wide, min(room, most), 1)
    tile, split = enumerate_members(num_splits)
    return tile, split, num_splits[tile]
