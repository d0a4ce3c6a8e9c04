"""Which blocks of query rows walk over which parts of their contexts, before walks are divided into splits.

Usually a block is some rows of one request, with one walk over what they see. Where requests share a prefix, a block is
one row each of several requests: one walk takes all its rows over the prefix, and then each row walks alone over the
rest of its context. What the walks of a block found is merged, for each row the prefix first.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from punica_kernels.members import Indices, enumerate_members
from punica_kernels.shared_prefixes import PrefixGroups


class Requests(NamedTuple):
    """The requests of a step: [N], but for `query_starts`."""

    tokens: Indices
    #: [N + 1]
    query_starts: Indices
    num_rows: Indices
    #: Where the pages of each begin in the step's.
    first_pages: Indices


@dataclass(frozen=True, slots=True)
class Walks:
    """[walks] each: rows, and tokens that begin with a page."""

    #: The first query row, or its place in the step's list of rows, and the number of rows.
    first_row: Indices
    num_rows: Indices
    first_page: Indices
    num_tokens: Indices
    #: The last token that the first row sees.
    last_visible: Indices


@dataclass(frozen=True, slots=True)
class RowBlocks:
    """A list of requests with one row each, block by block: those that share a prefix, then blocks of one row."""

    #: [rows]
    requests: Indices
    #: [blocks that share] Rows of each, at least two, and pages of their prefix.
    num_sharing: Indices
    prefix_pages: Indices

    @property
    def num_rows(self) -> Indices:
        """[blocks]"""
        num_alone = len(self.requests) - int(self.num_sharing.sum())
        return np.concatenate([self.num_sharing, np.ones(num_alone, np.int64)])

    @property
    def block_of_row(self) -> Indices:
        """[rows]"""
        num_rows = self.num_rows
        return np.repeat(np.arange(len(num_rows)), num_rows)


def block_walks(requests: Requests, block_queries: int, page_size: int, window: int | None) -> Walks:
    """One walk for each block of at most ``block_queries`` rows of a request."""
    request, nth = enumerate_members(-(-requests.num_rows // block_queries))
    first_row = nth * block_queries
    num_rows = np.minimum(requests.num_rows[request] - first_row, block_queries)
    last_visible = requests.tokens[request] - requests.num_rows[request] + first_row
    skipped_pages = _skipped_pages(last_visible, page_size, window)
    last_visible -= skipped_pages * page_size
    first_page = requests.first_pages[request] + skipped_pages
    return Walks(
        requests.query_starts[request] + first_row, num_rows, first_page, last_visible + num_rows, last_visible
    )


def row_blocks(requests: Requests, groups: PrefixGroups, block_queries: int, window: int | None) -> RowBlocks:
    """Divides each group into blocks of at most ``block_queries`` rows, as equal as can be; other rows stay alone.

    So do those of a group in which a window hides something, since its rows do not all see the same of the prefix.
    """
    if window is not None:
        groups = groups.within(window, requests.tokens)
    num_blocks = -(-groups.sizes // block_queries)
    group, nth = enumerate_members(num_blocks)
    num_rows = groups.sizes[group] // num_blocks[group] + (nth < groups.sizes[group] % num_blocks[group])
    is_shared = num_rows > 1
    sharing = groups.requests[np.repeat(is_shared, num_rows)]
    is_alone = requests.num_rows > 0
    is_alone[sharing] = False
    listed = np.concatenate([sharing, np.flatnonzero(is_alone)])
    return RowBlocks(listed, num_rows[is_shared], groups.num_pages[group[is_shared]])


def sharing_walks(requests: Requests, blocks: RowBlocks, page_size: int, window: int | None) -> Walks:
    """A walk for each block's prefix, then one for each listed row. Rows are places in that list."""
    num_rows, num_sharing = len(blocks.requests), blocks.num_sharing
    last_visible = requests.tokens[blocks.requests] - 1
    own_pages = _skipped_pages(last_visible, page_size, window)
    own_pages[: num_sharing.sum()] = np.repeat(blocks.prefix_pages, num_sharing)
    first_rows = np.cumsum(num_sharing) - num_sharing
    first_pages = requests.first_pages[blocks.requests]
    num_tokens = np.concatenate([blocks.prefix_pages * page_size, last_visible + 1 - own_pages * page_size])
    return Walks(
        np.concatenate([first_rows, np.arange(num_rows)]),
        np.concatenate([num_sharing, np.ones(num_rows, np.int64)]),
        np.concatenate([first_pages[first_rows], first_pages + own_pages]),
        num_tokens,
        num_tokens - 1,
    )


def _skipped_pages(last_visible: Indices, page_size: int, window: int | None) -> Indices:
    """[walks] pages before the first token that the walk's first row sees."""
    if window is None:
        return np.zeros_like(last_visible)
    return np.maximum(last_visible - window + 1, 0) // page_size
