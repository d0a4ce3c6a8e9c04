"""Which blocks of query rows walk over which parts of their contexts, and how walks are divided into tiles.

A walk is a tile that is not divided yet: a row of a table with the columns of `WorkTileField`. Usually a block is some
rows of one request, with one walk over what they see. `punica_kernels.sharing_walks` has those of requests that share
prefixes.
"""

from typing import NamedTuple

import numpy as np

from punica_kernels.members import Indices, enumerate_members
from punica_kernels.tile_fields import TILE_WORDS, WorkTileField


class Requests(NamedTuple):
    """The requests of a step: [N], but for `query_starts`."""

    tokens: Indices
    #: [N + 1]
    query_starts: Indices
    num_rows: Indices
    #: Where the pages of each begin in the step's.
    first_pages: Indices


def block_walks(requests: Requests, block_queries: int, page_size: int, window: int | None) -> Indices:
    """[walks, TILE_WORDS], without splits: one walk for each block of at most ``block_queries`` rows of a request."""
    request, nth = enumerate_members(-(-requests.num_rows // block_queries))
    first_row = nth * block_queries
    num_rows = np.minimum(requests.num_rows[request] - first_row, block_queries)
    last_visible = requests.tokens[request] - requests.num_rows[request] + first_row
    skipped = skipped_pages(last_visible, page_size, window)
    last_visible -= skipped * page_size
    walks = np.empty((len(request), TILE_WORDS), np.int64)
    walks[:, WorkTileField.FIRST_ROW] = requests.query_starts[request] + first_row
    walks[:, WorkTileField.NUM_ROWS] = num_rows
    walks[:, WorkTileField.FIRST_PAGE] = requests.first_pages[request] + skipped
    walks[:, WorkTileField.NUM_TOKENS] = last_visible + num_rows
    walks[:, WorkTileField.LAST_VISIBLE] = last_visible
    return walks


def row_walks(requests: Requests, page_size: int, window: int | None) -> Indices:
    """``block_walks`` of requests that have one row each, as decodes do, in a fraction of the time."""
    last_visible = requests.tokens - 1
    skipped = skipped_pages(last_visible, page_size, window)
    last_visible -= skipped * page_size
    walks = np.empty((len(last_visible), TILE_WORDS), np.int64)
    walks[:, WorkTileField.FIRST_ROW] = requests.query_starts[:-1]
    walks[:, WorkTileField.NUM_ROWS] = 1
    walks[:, WorkTileField.FIRST_PAGE] = requests.first_pages[: len(last_visible)] + skipped
    walks[:, WorkTileField.NUM_TOKENS] = last_visible + 1
    walks[:, WorkTileField.LAST_VISIBLE] = last_visible
    return walks


def skipped_pages(last_visible: Indices, page_size: int, window: int | None) -> Indices:
    """[walks] pages before the first token that the walk's first row sees."""
    if window is None:
        return np.zeros_like(last_visible)
    return np.maximum(last_visible - window + 1, 0) // page_size


def write_splits(walks: Indices, num_splits: Indices) -> None:
    """Gives each walk, a block's only one, its splits' places in the workspace."""
    walks[:, WorkTileField.SPLIT] = walks[:, WorkTileField.FIRST_SPLIT] = first_splits(num_splits)
    walks[:, WorkTileField.NUM_SPLITS] = num_splits


def first_splits(num_splits: Indices) -> Indices:
    """[blocks] The first place of each block's splits in the workspace; -1 where it has but one, which needs none."""
    is_split = num_splits > 1
    if not is_split.any():
        return np.full_like(num_splits, -1)
    num_places = np.where(is_split, num_splits, 0)
    return np.where(is_split, np.cumsum(num_places) - num_places, -1)


def divide(walks: Indices, num_splits: Indices, split_pages: Indices, page_size: int) -> Indices:
    """[tiles, words] The splits of each walk, ``split_pages`` pages each but for the last one; the longest come first.

    Changes no walk; `WorkTileField.SPLIT` of each is that of its first split.
    """
    if num_splits.max(initial=1) == 1:
        return walks[np.argsort(-walks[:, WorkTileField.NUM_TOKENS], kind="stable")]
    _, nth = enumerate_members(num_splits)
    tiles, pages = np.repeat(walks, num_splits, axis=0), np.repeat(split_pages, num_splits)
    first_page = nth * pages
    first_token = first_page * page_size
    tiles[:, WorkTileField.FIRST_PAGE] += first_page
    tiles[:, WorkTileField.LAST_VISIBLE] -= first_token
    tiles[:, WorkTileField.SPLIT] += nth
    num_tokens = np.minimum(tiles[:, WorkTileField.NUM_TOKENS] - first_token, pages * page_size)
    tiles[:, WorkTileField.NUM_TOKENS] = num_tokens
    return tiles[np.argsort(-num_tokens, kind="stable")]
