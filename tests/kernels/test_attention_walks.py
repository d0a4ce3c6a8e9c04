"""``row_walks`` gives what ``block_walks`` gives for requests of one row each."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from punica_kernels.attention_walks import Requests, block_walks, divide, row_walks, write_splits
from punica_kernels.tile_fields import WorkTileField

PAGE_SIZE = 4


def _decodes(lengths: list[int]) -> Requests:
    tokens = np.array(lengths, np.int64)
    return Requests(tokens, np.arange(len(tokens) + 1) + 7, np.ones_like(tokens), 100 * np.arange(len(tokens) + 1))


@given(st.lists(st.integers(1, 99), max_size=6), st.sampled_from([None, 1, 10]), st.sampled_from([1, 4]))
def test_rows_are_blocks_of_one(lengths: list[int], window: int | None, block_queries: int) -> None:
    requests = _decodes(lengths)
    rows, blocks = row_walks(requests, PAGE_SIZE, window), block_walks(requests, block_queries, PAGE_SIZE, window)
    places = slice(WorkTileField.FIRST_ROW, WorkTileField.LAST_VISIBLE + 1)
    np.testing.assert_array_equal(rows[:, places], blocks[:, places])


@pytest.mark.parametrize("num_splits", [[1, 1, 1], [1, 2, 1]])
def test_the_longest_tiles_come_first_split_or_not(num_splits: list[int]) -> None:
    walks, splits = row_walks(_decodes([3, 9, 5]), PAGE_SIZE, None), np.array(num_splits)
    write_splits(walks, splits)
    tiles = divide(walks, splits, np.array([1, 2, 2]) if max(num_splits) > 1 else np.array([1, 3, 2]), PAGE_SIZE)
    tokens = tiles[:, WorkTileField.NUM_TOKENS].tolist()
    assert tokens == sorted(tokens, reverse=True) and sum(tokens) == 17
    assert (tiles[:, WorkTileField.SPLIT] == -1).sum() == num_splits.count(1)
