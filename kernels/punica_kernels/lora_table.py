"""The step's LoRA segments as int32 words of a fixed layout: the index that the GPU's SGMV kernels read.

A CUDA graph replays the same launches whatever the data says, so a table's size and the grids depend only on its
`LoraTableShape`; a step's segments are written into it on the host and copied to the device. It holds two lists:

- tiles, for the expand: runs of at most `TILE_ROWS` rows of one segment with their adapter's pages, highest ranks
  first. A tile without pages marks rows without LoRA. Every row below max_rows is in exactly one tile.
- items, for the shrink: one for each tile and each two of its pages (16 rank rows), so that the work of a step with
  mixed ranks falls into equal parts.

Unused entries are -1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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
#: Words of a tile before its pages: first row, rows, items, unused.
TILE_HEADER_WORDS = 4
#: Words of an item: first row, rows, its place in the rank order, page, page.
ITEM_WORDS = 8

Words = npt.NDArray[np.int32]


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
        counts = np.fromiter(map(len, pages), np.int64, len(pages))
        bounds = np.asarray(indptr, np.int64)
        self._check(bounds, counts)
        matrix = np.full((len(pages) + 1, self.max_tile_items * ITEM_PAGES), -1, np.int32)
        matrix[:-1][np.arange(matrix.shape[1]) < counts[:, None]] = np.fromiter(chain.from_iterable(pages), np.int32)
        self._write(words, np.append(bounds, self.max_rows), np.append(counts, 0), matrix)

    def _check(self, bounds: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> None:
        if len(bounds) != len(counts) + 1 or bounds[0] != 0 or (bounds[1:] < bounds[:-1]).any():
            raise ValueError(
                f"indptr must rise from 0, one more than the {len(counts)} segments, got {bounds.tolist()}"
            )
        if len(counts) > self.max_segments or bounds[-1] > self.max_rows:
            raise ValueError(f"{len(counts)} segments of {bounds[-1]} rows do not fit {self}")
        if counts.max(initial=0) > self.max_rank_pages:
            raise ValueError(f"an adapter of {counts.max()} pages does not fit {self}")

    def _write(self, words: Words, bounds: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], pages: Words) -> None:
        segment, nth = _enumerate(-(-np.diff(bounds) // TILE_ROWS))
        order = np.argsort(-counts[segment], kind="stable")
        segment, nth = segment[order], nth[order]
        num_items = -(-counts[segment] // ITEM_PAGES)
        words.fill(-1)
        tiles = words[: self.items_start].reshape(self.max_tiles, self.tile_words)[: len(segment)]
        tiles[:, 0] = bounds[segment] + nth * TILE_ROWS
        tiles[:, 1] = np.minimum(bounds[segment + 1] - tiles[:, 0], TILE_ROWS)
        tiles[:, 2] = num_items
        tiles[:, TILE_HEADER_WORDS:] = pages[segment]
        tile, nth = _enumerate(num_items)
        items = words[self.items_start :].reshape(self.max_items, ITEM_WORDS)[: len(tile)]
        items[:, :2] = tiles[tile, :2]
        items[:, 2] = nth
        items[:, 3 : 3 + ITEM_PAGES] = tiles[:, TILE_HEADER_WORDS:].reshape(len(tiles), -1, ITEM_PAGES)[tile, nth]


@dataclass(frozen=True, slots=True)
class LoraTable:
    """A filled table on the device."""

    #: int32 [shape.num_words]
    words: Tensor
    shape: LoraTableShape


def _enumerate(counts: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """For owners with so many members each: every member's owner, and its number among the owner's."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
