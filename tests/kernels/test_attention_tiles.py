"""Work tiles of attention: every row sees every token of its past once, and the table never runs over."""

from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from punica_kernels.attention_tiles import AttentionShape
from punica_kernels.members import Indices
from punica_kernels.tile_fields import TILE_WORDS, WorkTileField

PAGE_SIZE = 4

Request = tuple[int, int]
#: (tokens in all, query rows): none, the newest few, all.
requests = st.integers(0, 200).flatmap(lambda length: st.tuples(st.just(length), st.integers(0, length)))


def _tiles(shape: AttentionShape, wanted: list[Request]) -> Indices:
    """[tiles, TILE_WORDS]; each request's pages begin at a multiple of 1000."""
    words = np.zeros(shape.num_words, np.int32)
    lengths = [length for length, _ in wanted]
    starts = [0, *accumulate(rows for _, rows in wanted)]
    shape.fill(words, lengths, starts, [1000 * request for request in range(len(wanted))], PAGE_SIZE)
    table = words.reshape(-1, TILE_WORDS).astype(np.int64)
    num_used = int((table[:, WorkTileField.FIRST_ROW] >= 0).sum())
    assert (table[:num_used, WorkTileField.FIRST_ROW] >= 0).all() and (table[num_used:] == -1).all()
    return table[:num_used]


@given(st.lists(requests, max_size=6), st.integers(1, 30), st.integers(1, 40), st.sampled_from([1, 4, 16]))
def test_rows_see_their_past_once(
    wanted: list[Request], num_programs: int, min_tokens: int, block_queries: int
) -> None:
    shape = AttentionShape(6, 200, 2, 2, block_queries, num_programs, min_tokens)
    tiles = _tiles(shape, wanted)
    starts = [0, *accumulate(rows for _, rows in wanted)]
    seen: dict[int, list[int]] = {row: [] for row in range(starts[-1])}
    for first_row, num_rows, first_page, tokens, last_visible, *_ in sorted(
        tiles.tolist(), key=lambda tile: tile[WorkTileField.FIRST_PAGE]
    ):
        assert 0 < num_rows <= block_queries and tokens > 0
        request, start = first_page // 1000, first_page % 1000 * PAGE_SIZE
        assert starts[request] <= first_row and first_row + num_rows <= starts[request + 1]
        for row in range(num_rows):
            seen[first_row + row] += range(start, start + min(tokens, max(last_visible + row + 1, 0)))
    for request, (length, rows) in enumerate(wanted):
        for row in range(rows):
            assert seen[starts[request] + row] == list(range(length - rows + row + 1))


@given(st.lists(requests, max_size=6), st.integers(1, 30), st.sampled_from([1, 4, 16]), st.integers(1, 60))
def test_tiles_begin_with_the_page_that_a_window_begins_in(
    wanted: list[Request], num_programs: int, block_queries: int, window: int
) -> None:
    shape = AttentionShape(6, 200, 2, 2, block_queries, num_programs, 8, window)
    tiles = _tiles(shape, wanted)
    starts = [0, *accumulate(rows for _, rows in wanted)]
    blocks: dict[int, list[list[int]]] = {}
    for tile in sorted(tiles.tolist(), key=lambda tile: tile[WorkTileField.FIRST_PAGE]):
        blocks.setdefault(tile[WorkTileField.FIRST_ROW], []).append(tile)
    for first_row, splits in blocks.items():
        request = splits[0][WorkTileField.FIRST_PAGE] // 1000
        length, rows = wanted[request]
        position = length - rows + first_row - starts[request]
        spans = [
            (split[WorkTileField.FIRST_PAGE] % 1000 * PAGE_SIZE, split[WorkTileField.NUM_TOKENS]) for split in splits
        ]
        assert spans[0][0] == max(0, position - window + 1) // PAGE_SIZE * PAGE_SIZE
        assert all(start + tokens == later for (start, tokens), (later, _) in pairwise(spans))
        assert sum(spans[-1]) == position + splits[0][WorkTileField.NUM_ROWS]
        assert {tile[WorkTileField.LAST_VISIBLE] + start for tile, (start, _) in zip(splits, spans, strict=True)} == {
            position
        }
    assert sum(tiles[:, WorkTileField.SPLIT] >= 0) <= shape.max_splits and len(tiles) <= shape.max_tiles


@given(st.lists(requests, max_size=6), st.integers(1, 30), st.integers(1, 40))
def test_splits_of_a_block_are_adjacent_and_have_room(
    wanted: list[Request], num_programs: int, min_tokens: int
) -> None:
    shape = AttentionShape(6, 200, 2, 2, 16, num_programs, min_tokens)
    tiles = _tiles(shape, wanted)
    assert (np.diff(tiles[:, WorkTileField.NUM_TOKENS]) <= 0).all()
    blocks: dict[int, list[list[int]]] = {}
    for tile in sorted(tiles.tolist(), key=lambda tile: tile[WorkTileField.FIRST_PAGE]):
        blocks.setdefault(tile[WorkTileField.FIRST_ROW], []).append(tile[WorkTileField.SPLIT :])
    places: list[int] = []
    for splits in blocks.values():
        first = splits[0][1]
        if len(splits) == 1:
            assert splits[0][0] == -1 and splits[0][2] == 1
        else:
            assert splits == [[first + number, first, len(splits)] for number in range(len(splits))]
            places += range(first, first + len(splits))
    assert sorted(places) == list(range(len(places))) and len(places) <= shape.max_splits


def test_long_contexts_are_divided_and_short_ones_left_whole() -> None:
    shape = AttentionShape(4, 1, 2, 2, 16, num_programs=8, min_split_tokens=64)
    tiles = _tiles(shape, [(1000, 1), (130, 1), (20, 1), (3, 1)])
    # 1153 tokens for 8 programs: 145 each, in whole pages, and the splits of a request are equal but for the last.
    assert tiles[:, [WorkTileField.FIRST_ROW, WorkTileField.NUM_TOKENS]].tolist() == [
        *[[0, 144]] * 6,
        [0, 136],
        [1, 130],
        [2, 20],
        [3, 3],
    ]


@pytest.mark.parametrize(("rows", "num_tiles"), [(64, 4), (48, 6), (32, 8)])
def test_a_prompts_splits_all_run_at_once(rows: int, num_tiles: int) -> None:
    """4 blocks stay whole with 4 programs, though half of them are longer than a fourth of all; 3 and 2 blocks form
    two and four splits each with 8.
    """
    shape = AttentionShape(1, 64, 2, 2, 16, num_programs=4 if rows == 64 else 8, min_split_tokens=8)
    tiles = _tiles(shape, [(1000, rows)])
    assert len(tiles) == num_tiles and set(tiles[:, WorkTileField.NUM_SPLITS]) == {num_tiles * 16 // rows}


def test_what_does_not_fit_is_refused() -> None:
    shape = AttentionShape.of(2, 1, heads=4, kv_heads=2, head_dim=16, dtype=torch.float32, device=torch.device("cpu"))
    with pytest.raises(ValueError, match="3 requests of at most 1 rows do not fit"):
        _tiles(shape, [(1, 1)] * 3)
    with pytest.raises(ValueError, match="1 requests of at most 2 rows do not fit"):
        _tiles(shape, [(5, 2)])
    with pytest.raises(ValueError, match="more query rows than tokens"):
        _tiles(shape, [(1, 2)])
    with pytest.raises(ValueError, match=r"words must be \[\d+\], got \[3\]"):
        shape.fill(np.zeros(3, np.int32), [1], [0, 1], [0], PAGE_SIZE)
