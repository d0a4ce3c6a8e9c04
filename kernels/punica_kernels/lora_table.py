"""The step's LoRA segments as int32 words of a fixed layout: the index that the GPU's SGMV kernels read.

A CUDA graph replays the same launches whatever the data says, so a table's size and the grids depend only on its
`LoraTableShape`; a step's segments are written into it on the host and copied to the device. It holds two lists:

- tiles, for the expand: runs of at most `TILE_ROWS` rows of one segment with their adapter's pages, highest ranks
  first. A tile without pages marks rows without LoRA. Every row below max_rows is in one tile; where there is
  room, several entries share a tile's columns.
- items, for the shrink: one for each tile and each two of its pages (16 rank rows), so that the work of a step with
  mixed ranks falls into equal parts.

Unused entries are -1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import numpy as np
import numpy.typing as npt
from torch import Tensor

#: Most rows in a tile: the height of the smallest tensor-core product.
TILE_ROWS = 16
#: Rank rows of a page.
PAGE_RANKS = 8
#: Pages of an item: 16 rank rows, the width of the smallest tensor-core product.
ITEM_PAGES = 2
#: Rank rows of an item.
ITEM_RANKS = ITEM_PAGES * PAGE_RANKS
#: Most pages of an adapter in one group: rank 128.
MAX_RANK_PAGES = 16
#: Words of a tile before its pages: first row, rows, items, first block of columns, step to its next one.
TILE_HEADER_WORDS = 5
#: Tiles up to which a table is a small one.
SMALL_TABLE_TILES = 32
#: Most programs that share the columns of a tile of several rows, where there are fewer tiles than room: there is work
#: for no more than the expand has blocks of columns in a program.
MAX_COLUMN_PARTS = 2
#: Words of an item: first row, rows, its place in the rank order, page, page.
ITEM_WORDS = 8

Words = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LoraTableShape:
    """What a table can hold: it fixes the table's size and the kernels' grids."""

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
    def max_tiles(self) -> int:
        """Every segment has at most one tile that is not full; the rows past the last segment are one more."""
        return min(self.max_rows, self.max_segments + 1 + self.max_rows // TILE_ROWS)

    @property
    def max_tile_items(self) -> int:
        """Items of the tile with the most pages."""
        return -(-self.max_rank_pages // ITEM_PAGES)

    @property
    def max_ranks(self) -> int:
        """Rank rows of the workspace for each row of the batch."""
        return self.max_tile_items * ITEM_RANKS

    @property
    def max_items(self) -> int:
        return self.max_tiles * self.max_tile_items

    @property
    def tile_words(self) -> int:
        return TILE_HEADER_WORDS + self.max_tile_items * ITEM_PAGES

    @property
    def items_start(self) -> int:
        """Where the items start, in words."""
        return self.max_tiles * self.tile_words

    @property
    def num_words(self) -> int:
        """int32 words of one group's table."""
        return self.items_start + self.max_items * ITEM_WORDS

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
        words[:] = layout.words
        words[layout.page_words] = np.fromiter(chain.from_iterable(pages), np.int32)[layout.pages]


@dataclass(frozen=True, slots=True)
class LoraTable:
    """A filled table on the device."""

    #: int32 [shape.num_words]
    words: Tensor
    shape: LoraTableShape


@dataclass(frozen=True, slots=True)
class _Layout:
    """A table but for its page numbers."""

    words: Words
    #: Where page numbers belong, and which of the adapters' pages, one after another, belongs there.
    page_words: Indices
    pages: Indices


# A group's steps, and a step's groups, mostly differ in page numbers alone.
@lru_cache(maxsize=64)
def _lay_out(shape: LoraTableShape, indptr: tuple[int, ...], num_pages: tuple[int, ...]) -> _Layout:
    """The table of segments whose adapters have so many pages."""
    counts = np.asarray(num_pages, np.int64)
    bounds = np.asarray(indptr, np.int64)
    _check_segments(shape, bounds, counts)
    # Rows past the last segment are one without LoRA.
    bounds, counts = np.append(bounds, shape.max_rows), np.append(counts, 0)
    slots = np.arange(shape.max_tile_items * ITEM_PAGES)
    pages = np.where(slots < counts[:, None], (np.cumsum(counts) - counts)[:, None] + slots, -1)
    segment, nth = _enumerate(-(-np.diff(bounds) // TILE_ROWS))
    order = np.argsort(-counts[segment], kind="stable")
    segment, nth = segment[order], nth[order]
    first_row = bounds[segment] + nth * TILE_ROWS
    rows = np.minimum(bounds[segment + 1] - first_row, TILE_ROWS)
    num_items = -(-counts[segment] // ITEM_PAGES)
    words, page_of_word = np.full((2, shape.num_words), -1)
    tile, part, num_parts = _split_columns((rows > 1) & (num_items > 0), shape)
    header = np.stack([first_row[tile], rows[tile], num_items[tile], part, num_parts], axis=1)
    _tiles(shape, words)[: len(tile), :TILE_HEADER_WORDS] = header
    _tiles(shape, page_of_word)[: len(tile), TILE_HEADER_WORDS:] = pages[segment[tile]]
    tile, nth = _enumerate(num_items)
    _items(shape, words)[: len(tile), :3] = np.stack([first_row[tile], rows[tile], nth], axis=1)
    item_pages = pages.reshape(len(counts), -1, ITEM_PAGES)[segment[tile], nth]
    _items(shape, page_of_word)[: len(tile), 3 : 3 + ITEM_PAGES] = item_pages
    page_words = np.flatnonzero(page_of_word >= 0)
    return _Layout(words.astype(np.int32), page_words, page_of_word[page_words])


def _check_segments(shape: LoraTableShape, bounds: Indices, counts: Indices) -> None:
    if len(bounds) != len(counts) + 1 or bounds[0] != 0 or (bounds[1:] < bounds[:-1]).any():
        raise ValueError(f"indptr must rise from 0, one more than the {len(counts)} segments, got {bounds.tolist()}")
    if len(counts) > shape.max_segments or bounds[-1] > shape.max_rows:
        raise ValueError(f"{len(counts)} segments of {bounds[-1]} rows do not fit {shape}")
    if counts.max(initial=0) > shape.max_rank_pages:
        raise ValueError(f"an adapter of {counts.max()} pages does not fit {shape}")


def _tiles(shape: LoraTableShape, words: Indices) -> Indices:
    return words[: shape.items_start].reshape(shape.max_tiles, shape.tile_words)


def _items(shape: LoraTableShape, words: Indices) -> Indices:
    return words[shape.items_start :].reshape(shape.max_items, ITEM_WORDS)


def _split_columns(wide: npt.NDArray[np.bool_], shape: LoraTableShape) -> tuple[Indices, Indices, Indices]:
    """(tile, part, parts) of each entry: `wide` tiles are shared by as many programs as there is room for."""
    room = (shape.max_tiles - len(wide)) // max(1, int(np.count_nonzero(wide))) + 1
    num_parts = np.where(wide, min(room, MAX_COLUMN_PARTS), 1)
    tile, part = _enumerate(num_parts)
    return tile, part, num_parts[tile]


def _enumerate(counts: Indices) -> tuple[Indices, Indices]:
    """For owners with so many members each: every member's owner, and its number among the owner's."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
