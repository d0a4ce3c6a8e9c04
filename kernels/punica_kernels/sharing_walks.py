"""The walks of requests that share prefixes, one query row each.

A block is one row each of several requests. One walk takes all its rows over their prefix, and then each row walks
alone over the rest of its context. The results of a block's walks are merged, for each row the prefix first. The rows
of a table are places in its list of rows, since those of a block may lie anywhere in the step.
"""

from dataclasses import dataclass

import numpy as np

from punica_kernels.attention_walks import Requests, first_splits, skipped_pages, write_splits
from punica_kernels.members import Indices, enumerate_members
from punica_kernels.shared_prefixes import PrefixGroups
from punica_kernels.tile_fields import SHARING_TILE_WORDS, WorkTileField

_NOTHING = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class RowBlocks:
    """The list of rows, block by block: those that share a prefix, then blocks of one row."""

    #: [rows] The request of each.
    requests: Indices
    #: [sharing blocks] The first row of each, the number of its rows, at least two, and the pages of their prefix.
    first_row: Indices
    num_rows: Indices
    prefix_pages: Indices

    @classmethod
    def of(cls, requests: Requests, groups: PrefixGroups, block_queries: int, window: int | None) -> "RowBlocks":
        """Divides each group into blocks of at most ``block_queries`` rows, as equal as can be; other rows stay alone.

        So do those of a group in which a window hides something, since its rows do not all see the same of the prefix.
        """
        if len(groups.num_pages) == 0:
            return cls(np.flatnonzero(requests.num_rows), *[_NOTHING] * 3)
        if window is not None:
            groups = groups.within(window, requests.tokens)
        sizes = groups.sizes
        num_blocks = -(-sizes // block_queries)
        group, nth = enumerate_members(num_blocks)
        num_rows = sizes[group] // num_blocks[group] + (nth < sizes[group] % num_blocks[group])
        is_shared = num_rows > 1
        sharing = groups.requests[np.repeat(is_shared, num_rows)]
        is_alone = requests.num_rows > 0
        is_alone[sharing] = False
        num_rows = num_rows[is_shared]
        listed = np.concatenate([sharing, np.flatnonzero(is_alone)])
        return cls(listed, np.cumsum(num_rows) - num_rows, num_rows, groups.num_pages[group[is_shared]])

    @property
    def num_sharing(self) -> int:
        """Rows that share a prefix, the first ones of the list."""
        return int(self.num_rows.sum()) if len(self.num_rows) else 0

    def walks(self, requests: Requests, page_size: int, window: int | None) -> Indices:
        """[walks, SHARING_TILE_WORDS], without splits: one for each prefix, then one for each row."""
        num_prefixes, num_sharing = len(self.num_rows), self.num_sharing
        walks = np.empty((num_prefixes + len(self.requests), SHARING_TILE_WORDS), np.int64)
        prefixes, own, sharing = walks[:num_prefixes], walks[num_prefixes:], walks[num_prefixes:][:num_sharing]
        own[:, WorkTileField.FIRST_ROW] = np.arange(len(own))
        own[:, WorkTileField.NUM_ROWS] = 1
        own[:, WorkTileField.FIRST_PAGE] = requests.first_pages[self.requests]
        tokens = requests.tokens[self.requests]
        own_pages = skipped_pages(tokens - 1, page_size, window)
        if num_sharing:
            prefixes[:, WorkTileField.FIRST_ROW] = self.first_row
            prefixes[:, WorkTileField.NUM_ROWS] = self.num_rows
            prefixes[:, WorkTileField.FIRST_PAGE] = own[self.first_row, WorkTileField.FIRST_PAGE]
            prefixes[:, WorkTileField.NUM_TOKENS] = self.prefix_pages * page_size
            own_pages[:num_sharing] = np.repeat(self.prefix_pages, self.num_rows)
        own[:, WorkTileField.FIRST_PAGE] += own_pages
        own[:, WorkTileField.NUM_TOKENS] = tokens - own_pages * page_size
        walks[:, WorkTileField.LAST_VISIBLE] = walks[:, WorkTileField.NUM_TOKENS] - 1
        block = slice(WorkTileField.BLOCK_FIRST_ROW, WorkTileField.BLOCK_NUM_ROWS + 1)
        walks[:, block] = walks[:, WorkTileField.FIRST_ROW : WorkTileField.NUM_ROWS + 1]
        if num_sharing:
            sharing[:, block] = np.repeat(prefixes[:, block], self.num_rows, axis=0)
        return walks

    def write_splits(self, walks: Indices, num_splits: Indices) -> Indices:
        """Gives each walk its splits' places in the workspace. Returns the splits of each row, those of its prefix too.

        The rows of a block have places of their own in each of its splits. So the first splits of all of them are those
        of the prefix, and the next ones each row's own: the n-th own splits of several rows share one place.
        """
        if not self.num_sharing:
            write_splits(walks, num_splits)
            return num_splits
        prefixes = slice(len(self.num_rows))
        sharing = slice(len(self.num_rows), len(self.num_rows) + self.num_sharing)
        of_rows, num_tiles, num_places = num_splits.copy(), num_splits.copy(), num_splits.copy()
        of_rows[sharing] += np.repeat(num_splits[prefixes], self.num_rows)
        # The other walks are blocks themselves.
        num_places[sharing] = 0
        num_tiles[prefixes] += np.add.reduceat(num_splits[sharing], self.first_row)
        num_places[prefixes] = np.maximum.reduceat(of_rows[sharing], self.first_row)
        first = first_splits(num_places)
        for of_block in (first, num_tiles):
            of_block[sharing] = np.repeat(of_block[prefixes], self.num_rows)
        walks[:, WorkTileField.FIRST_SPLIT] = first
        walks[:, WorkTileField.SPLIT] = first + of_rows - num_splits
        walks[:, WorkTileField.NUM_SPLITS] = num_tiles
        return of_rows[len(self.num_rows) :]
