from itertools import pairwise

import numpy as np
import pytest

from punica_kernels.lora_table import (
    BLOCK_PAGES,
    LONG_PROMPT_ROWS,
    RANK_BLOCK_WORDS,
    TILE_HEADER_WORDS,
    TILE_ROWS,
    ExpandTileField,
    LoraTableShape,
    RankBlockField,
    Words,
)


def fill(shape: LoraTableShape, indptr: list[int], pages: list[list[int]]) -> Words:
    words = np.full(shape.num_words, 12345, np.int32)
    shape.fill(words, indptr, pages)
    return words


def entries(shape: LoraTableShape, words: Words) -> list[list[int]]:
    """The words of the tiles in use."""
    return [
        row
        for row in words[: shape.rank_blocks_start].reshape(shape.max_tiles, shape.tile_words).tolist()
        if row[1] > 0
    ]


def tiles(shape: LoraTableShape, words: Words) -> list[tuple[int, int, int, list[int]]]:
    """(first row, rows, rank blocks, pages) of the tiles in use, once each."""
    found = []
    for row in entries(shape, words):
        if row[ExpandTileField.FIRST_COLUMN_BLOCK] == 0:
            pages = [page for page in row[TILE_HEADER_WORDS:] if page >= 0]
            fields = (ExpandTileField.FIRST_ROW, ExpandTileField.NUM_ROWS, ExpandTileField.NUM_RANK_BLOCKS)
            first_row, num_rows, num_rank_blocks = (row[each] for each in fields)
            found.append((first_row, num_rows, num_rank_blocks, pages))
    return found


def rank_blocks(shape: LoraTableShape, words: Words) -> list[list[int]]:
    """[first row, rows, number, page, page] of the rank blocks in use."""
    rows = words[shape.rank_blocks_start :].reshape(shape.max_rank_blocks, RANK_BLOCK_WORDS).tolist()
    return [row[: RankBlockField.PAGES + BLOCK_PAGES] for row in rows if row[RankBlockField.NUM_ROWS] > 0]


def test_tiles_of_highest_ranks_come_first_and_padding_is_rows_without_lora() -> None:
    shape = LoraTableShape(max_rows=8, max_segments=3, max_rank_pages=3)
    words = fill(shape, [0, 1, 3, 6], [[7], [], [4, 2, 9]])
    assert tiles(shape, words) == [(3, 3, 2, [4, 2, 9]), (0, 1, 1, [7]), (1, 2, 0, []), (6, 2, 0, [])]
    assert rank_blocks(shape, words) == [[3, 3, 0, 4, 2], [3, 3, 1, 9, -1], [0, 1, 0, 7, -1]]


def test_long_segments_are_cut_into_tiles() -> None:
    shape = LoraTableShape(max_rows=40, max_segments=2, max_rank_pages=2)
    words = fill(shape, [0, 35, 40], [[3, 1], []])
    assert tiles(shape, words) == [(0, 16, 1, [3, 1]), (16, 16, 1, [3, 1]), (32, 3, 1, [3, 1]), (35, 5, 0, [])]
    assert [block[:2] for block in rank_blocks(shape, words)] == [[0, 16], [16, 16], [32, 3]]


def test_tiles_of_long_prompts_are_larger_and_share_nothing() -> None:
    shape = LoraTableShape(max_rows=LONG_PROMPT_ROWS + 2, max_segments=2, max_rank_pages=2)
    words = fill(shape, [0, 150, 151], [[3], [1]])
    expected = [(0, 64, 1, [3]), (64, 64, 1, [3]), (128, 22, 1, [3])]
    without: list[tuple[int, int, int, list[int]]] = [(151 + 64 * number, 64, 0, []) for number in range(4)]
    of_one_row = (150, 1, 1, [1])
    assert tiles(shape, words) == [*expected, *without, (407, 43, 0, []), of_one_row]
    assert [block[:2] for block in rank_blocks(shape, words)] == [list(tile[:2]) for tile in (*expected, of_one_row)]
    assert words[ExpandTileField.WIDE_TILES] == 8
    assert words[ExpandTileField.NUM_TILES] == 9


def test_short_prompts_beside_many_decodes_have_small_tiles() -> None:
    assert LoraTableShape(LONG_PROMPT_ROWS + 511, 512, 2).tile_rows == TILE_ROWS


def test_no_program_of_a_shrink_has_arrived_at_first() -> None:
    shape = LoraTableShape(max_rows=40, max_segments=2, max_rank_pages=2)
    words = fill(shape, [0, 35], [[3, 1]])[shape.rank_blocks_start :].reshape(-1, RANK_BLOCK_WORDS)
    arrived = words[:3, RankBlockField.ARRIVED]
    assert not arrived.any()


@pytest.mark.parametrize(("num_rows", "splits"), [(4, 2), (2, 2), (1, 1)])
def test_tiles_of_several_rows_share_columns_as_far_as_there_is_room(num_rows: int, splits: int) -> None:
    shape = LoraTableShape(max_rows=16, max_segments=16, max_rank_pages=2)
    indptr = list(range(0, 17, num_rows))
    found = entries(shape, fill(shape, indptr, [[segment] for segment in range(len(indptr) - 1)]))
    expected = [[first, num_rows, 1, split, splits] for first in indptr[:-1] for split in range(splits)]
    assert [row[: ExpandTileField.WIDE_TILES] for row in found] == expected


def test_rows_without_lora_share_nothing() -> None:
    shape = LoraTableShape(max_rows=16, max_segments=16, max_rank_pages=2)
    assert [row[: ExpandTileField.WIDE_TILES] for row in entries(shape, fill(shape, [0, 8], [[]]))] == [
        [0, 8, 0, 0, 1],
        [8, 8, 0, 0, 1],
    ]


@pytest.mark.parametrize("seed", range(30))
def test_every_row_is_in_one_tile_and_every_page_in_one_rank_block_of_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 2 + 40 * (seed % 2), rng.integers(1, 20))
    indptr = [0, *np.cumsum(lengths).tolist()]
    pages = [rng.integers(0, 99, rng.integers(0, 17)).tolist() for _ in lengths]
    shape = LoraTableShape(max(1, indptr[-1] + int(rng.integers(0, 30))), len(pages), 16)
    words = fill(shape, indptr, pages)
    pages_of_row = [pages[i] for i, (start, end) in enumerate(pairwise(indptr)) for _ in range(start, end)]
    pages_of_row += [[] for _ in range(shape.max_rows - indptr[-1])]
    seen: list[int] = []
    for first, rows, num_rank_blocks, own in tiles(shape, words):
        assert 1 <= rows <= TILE_ROWS
        assert all(pages_of_row[row] == own for row in range(first, first + rows))
        assert [block[RankBlockField.PAGES :] for block in rank_blocks(shape, words) if block[:2] == [first, rows]] == [
            [*own[i : i + 2], -1][:2] for i in range(0, len(own), 2)
        ]
        assert num_rank_blocks == -(-len(own) // BLOCK_PAGES)
        seen += range(first, first + rows)
    assert sorted(seen) == list(range(shape.max_rows))


def test_nothing_of_an_earlier_step_stays() -> None:
    shape = LoraTableShape(4, 4, 4)
    words = fill(shape, [0, 1, 2, 3, 4], [[1, 2, 3, 4]] * 4)
    shape.fill(words, [0, 4], [[]])
    assert tiles(shape, words) == [(0, 4, 0, [])]
    assert rank_blocks(shape, words) == []


@pytest.mark.parametrize(
    ("indptr", "pages", "message"),
    [
        ([0, 1], [[1], [2]], "indptr must"),
        ([1, 2], [[1]], "indptr must"),
        ([0, 2, 1], [[1], [2]], "indptr must"),
        ([0, 5], [[1]], "do not fit"),
        ([0, 1, 2, 3], [[1], [2], [3]], "do not fit"),
        ([0, 1], [[1, 2, 3]], "adapter of 3 pages"),
    ],
)
def test_segments_that_do_not_fit_are_refused(indptr: list[int], pages: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fill(LoraTableShape(max_rows=4, max_segments=2, max_rank_pages=2), indptr, pages)


@pytest.mark.parametrize("shape", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1, 33)])
def test_shapes_that_hold_nothing_are_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"at least one|max_rank_pages"):
        LoraTableShape(*shape)
