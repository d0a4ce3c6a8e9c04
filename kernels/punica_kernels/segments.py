"""Which rows of a batch use which LoRA pages: the index that the SGMV operators read.

A segment is a run of adjacent rows of one adapter. An adapter's weights in one group of projections lie in pages, in
rank order. The index is built once per step on the host for one group and read by that group in every layer.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

# A segment is cut greedily into tiles of these many rows, so no tile is padded. Each tile reads its adapter's weights
# once. One row is the BGMV case; factors of four were quickest over all populations: more sizes mean more
# operator calls, fewer sizes mean that short segments read their weights once per row.
_TILE_ROWS = (64, 16, 4, 1)


@dataclass(frozen=True, slots=True)
class TileGroup:
    """Tiles of equal height and equal number of pages: one batched product, without padding to the highest rank."""

    #: Rows per tile.
    tile_rows: int
    #: int64 [num_tiles, tile_rows], rows of the batch; each row of the batch is in at most one tile.
    rows: Tensor
    #: int64 [num_tiles, num_pages], LoRA pages of the tile's adapter in rank order.
    pages: Tensor


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """The rows that have LoRA in one group of projections, as tiles grouped by shape."""

    num_rows: int
    #: Most pages that an adapter of this batch has in this group; 0 without LoRA.
    max_pages: int
    tile_groups: tuple[TileGroup, ...]

    @property
    def has_lora(self) -> bool:
        """Whether any row has LoRA in this group."""
        return bool(self.tile_groups)

    @classmethod
    def build(
        cls, indptr: Sequence[int], pages: Sequence[Sequence[int]], *, device: torch.device | str = "cpu"
    ) -> "SegmentIndex":
        """Index the segments [indptr[i], indptr[i + 1]), whose adapters have `pages[i]` in rank order.

        An empty `pages[i]` marks rows without LoRA; a segment may be empty. Raises ValueError when `indptr` does not
        start at 0, decreases, or does not have one element more than `pages`.
        """
        _check_segments(indptr, pages)
        tiles: dict[tuple[int, int], list[tuple[int, Sequence[int]]]] = defaultdict(list)
        for (start, end), segment_pages in zip(pairwise(indptr), pages, strict=True):
            if segment_pages:
                for first_row, tile_rows in _tiles(start, end):
                    tiles[tile_rows, len(segment_pages)].append((first_row, segment_pages))
        groups = tuple(_tile_group(tile_rows, members, device) for (tile_rows, _), members in tiles.items())
        return cls(indptr[-1], max((num_pages for _, num_pages in tiles), default=0), groups)


def _check_segments(indptr: Sequence[int], pages: Sequence[Sequence[int]]) -> None:
    if len(indptr) != len(pages) + 1:
        raise ValueError(f"indptr must have {len(pages) + 1} elements for {len(pages)} segments, got {len(indptr)}")
    if indptr[0] != 0 or any(start > end for start, end in pairwise(indptr)):
        raise ValueError(f"indptr must start at 0 and never decrease, got {list(indptr)}")


def _tiles(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Cut rows [start, end) into (first row, rows) of the largest tiles that fit."""
    for tile_rows in _TILE_ROWS:
        while end - start >= tile_rows:
            yield start, tile_rows
            start += tile_rows


def _tile_group(tile_rows: int, members: Sequence[tuple[int, Sequence[int]]], device: torch.device | str) -> TileGroup:
    first_rows = torch.tensor([first_row for first_row, _ in members])
    rows = first_rows[:, None] + torch.arange(tile_rows)
    pages = torch.tensor([list(tile_pages) for _, tile_pages in members])
    return TileGroup(tile_rows, rows.to(device), pages.to(device))
