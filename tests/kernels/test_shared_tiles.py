"""Work tiles of decodes that share prefixes: each row sees its context once, and every result has a place."""

from collections import Counter
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from punica_kernels.attention_tiles import AttentionShape
from punica_kernels.shared_prefixes import PrefixGroups
from punica_kernels.tile_fields import ROW_WORDS, RowField, WorkTileField

PAGE_SIZE, MAX_REQUESTS = 4, 12
Tile = list[int]


@st.composite
def _steps(draw: st.DrawFn) -> tuple[list[int], PrefixGroups]:
    """Lengths, and groups in any order; the newest token's page is nobody else's."""
    lengths = draw(st.lists(st.integers(0, 150), max_size=MAX_REQUESTS))
    free = draw(st.permutations([request for request, length in enumerate(lengths) if length > PAGE_SIZE]))
    groups: list[list[int]] = []
    while len(free) > 1 and draw(st.booleans()):
        size = draw(st.integers(2, len(free)))
        groups.append(free[:size])
        free = free[size:]
    most = [(min(lengths[request] for request in group) - 1) // PAGE_SIZE for group in groups]
    num_pages = [draw(st.integers(1, pages)) for pages in most]
    members = np.array([request for group in groups for request in group], np.int64)
    starts = np.array([0, *accumulate(map(len, groups))])
    return lengths, PrefixGroups(members, starts, np.array(num_pages, np.int64))


def _fill(shape: AttentionShape, lengths: list[int], groups: PrefixGroups) -> tuple[list[Tile], list[list[int]]]:
    """The used tiles, and the list of rows. Each request's pages begin at a multiple of 1000."""
    words = np.zeros(shape.num_words, np.int32)
    num_requests = len(lengths)
    page_starts = [1000 * request for request in range(num_requests)]
    shape.fill(words, lengths, np.arange(num_requests + 1), page_starts, PAGE_SIZE, groups)
    num_words = shape.max_tiles * shape.tile_words
    table = words[:num_words].reshape(-1, shape.tile_words)
    num_used = int((table[:, WorkTileField.FIRST_ROW] >= 0).sum())
    assert (table[num_used:] == -1).all() and (np.diff(table[:num_used, WorkTileField.NUM_TOKENS]) <= 0).all()
    tiles: list[Tile] = table[:num_used].tolist()
    rows: list[list[int]] = words[num_words:].reshape(-1, ROW_WORDS).tolist()
    return tiles, rows


shapes = st.builds(
    AttentionShape,
    *[st.just(each) for each in (MAX_REQUESTS, 1, 2, 2)],
    block_queries=st.sampled_from([2, 4, 16]),
    num_programs=st.integers(1, 30),
    min_split_tokens=st.integers(1, 40),
    window=st.none() | st.integers(1, 160),
    max_rows=st.just(MAX_REQUESTS),
    shares_prefixes=st.just(True),
)


@given(_steps(), shapes)
def test_each_row_sees_its_context_once(step: tuple[list[int], PrefixGroups], shape: AttentionShape) -> None:
    lengths, groups = step
    tiles, rows = _fill(shape, lengths, groups)
    prefixes = dict(zip(groups.requests.tolist(), np.repeat(groups.num_pages, groups.sizes).tolist(), strict=True))
    leaders = np.repeat(groups.requests[groups.starts[:-1]], groups.sizes)
    group_of = dict(zip(groups.requests.tolist(), leaders.tolist(), strict=True))
    seen: dict[int, Counter[int]] = {request: Counter() for request, length in enumerate(lengths) if length}
    for tile in tiles:
        first, num_rows = tile[WorkTileField.FIRST_ROW], tile[WorkTileField.NUM_ROWS]
        owner, start = divmod(tile[WorkTileField.FIRST_PAGE], 1000)
        tokens = range(start * PAGE_SIZE, start * PAGE_SIZE + tile[WorkTileField.NUM_TOKENS])
        assert 0 < num_rows <= shape.block_queries
        for request, _ in rows[first : first + num_rows]:
            if request != owner:
                assert group_of[request] == group_of[owner] and tokens.stop <= prefixes[request] * PAGE_SIZE
            assert num_rows == 1 or shape.window is None or lengths[request] <= shape.window
            assert tile[WorkTileField.LAST_VISIBLE] + tokens.start == lengths[request] - 1 or num_rows > 1
            seen[request].update(tokens)
    for request, counter in seen.items():
        hidden = max(0, lengths[request] - (shape.window or lengths[request])) // PAGE_SIZE * PAGE_SIZE
        assert counter == Counter(range(hidden, lengths[request]))


@given(_steps(), shapes)
def test_every_result_has_a_place_of_its_own(step: tuple[list[int], PrefixGroups], shape: AttentionShape) -> None:
    lengths, groups = step
    tiles, rows = _fill(shape, lengths, groups)
    found: dict[tuple[int, int], list[int]] = {}
    blocks: Counter[tuple[int, int]] = Counter()
    for tile in tiles:
        block = (tile[WorkTileField.BLOCK_FIRST_ROW], tile[WorkTileField.FIRST_SPLIT])
        blocks[block] += 1
        slot = tile[WorkTileField.FIRST_ROW] - tile[WorkTileField.BLOCK_FIRST_ROW]
        assert slot >= 0
        assert slot + tile[WorkTileField.NUM_ROWS] <= tile[WorkTileField.BLOCK_NUM_ROWS] <= shape.block_queries
        for row in range(tile[WorkTileField.FIRST_ROW], tile[WorkTileField.FIRST_ROW] + tile[WorkTileField.NUM_ROWS]):
            found.setdefault((row, tile[WorkTileField.FIRST_SPLIT]), []).append(tile[WorkTileField.SPLIT])
    assert all(tile[WorkTileField.NUM_SPLITS] == blocks[tile[8], tile[WorkTileField.FIRST_SPLIT]] for tile in tiles)
    places: Counter[int] = Counter()
    for (row, first_split), splits in found.items():
        assert len(splits) == rows[row][RowField.NUM_SPLITS]
        if first_split < 0:
            assert splits == [-1]
        else:
            assert sorted(splits) == list(range(first_split, first_split + len(splits)))
            assert first_split + len(splits) <= shape.max_splits
            places[first_split] += 1
    widths = dict.fromkeys(places, 0)
    for (_, first_split), splits in found.items():
        if first_split >= 0:
            widths[first_split] = max(widths[first_split], len(splits))
    ends = [first + width for first, width in sorted(widths.items())]
    assert all(end <= later for end, later in zip(ends, sorted(widths)[1:], strict=False))
    assert len(tiles) <= shape.max_tiles


def test_a_prefix_is_read_once_for_all_its_rows() -> None:
    """128 tokens a split: of the prefix two, of the rows' own contexts one each."""
    shape = AttentionShape(4, 1, 2, 2, 16, num_programs=8, min_split_tokens=128, shares_prefixes=True)
    groups = PrefixGroups(np.array([3, 1, 0]), np.array([0, 3]), np.array([64]))
    tiles, rows = _fill(shape, [260, 270, 20, 280], groups)
    columns = (WorkTileField.FIRST_ROW, WorkTileField.NUM_ROWS, WorkTileField.FIRST_PAGE, WorkTileField.NUM_TOKENS)
    assert [[tile[column] for column in columns] for tile in tiles] == [
        [0, 3, 3000, 128],
        [0, 3, 3032, 128],
        [0, 1, 3064, 24],
        [3, 1, 2000, 20],
        [1, 1, 1064, 14],
        [2, 1, 64, 4],
    ]
    assert rows == [[3, 3], [1, 3], [0, 3], [2, 1]]


@pytest.mark.parametrize(("size", "expected"), [(4, [4]), (5, [3, 2]), (9, [3, 3, 3])])
def test_large_groups_form_blocks_as_equal_as_can_be(size: int, expected: list[int]) -> None:
    shape = AttentionShape(9, 1, 2, 2, 4, num_programs=1, min_split_tokens=1000, shares_prefixes=True)
    groups = PrefixGroups(np.arange(size), np.array([0, size]), np.array([40]))
    tiles, _ = _fill(shape, [170] * size, groups)
    assert [tile[WorkTileField.NUM_ROWS] for tile in tiles if tile[WorkTileField.NUM_TOKENS] == 160] == expected


@pytest.mark.parametrize(
    ("rows", "heads", "kv_heads", "expected"),
    [(1, 32, 32, 16), (1, 32, 8, 4), (1, 28, 4, 2), (1, 32, 2, 0), (1, 64, 1, 0), (512, 32, 32, 0)],
)
def test_only_decodes_of_which_a_program_holds_several_share(
    rows: int, heads: int, kv_heads: int, expected: int
) -> None:
    """The rows that read a prefix together; 0: the table is the usual one."""
    cpu = torch.device("cpu")
    given: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "head_dim": 128, "dtype": torch.bfloat16}
    given["device"] = cpu
    usual = AttentionShape.of(32, rows, **given)
    shape = AttentionShape.of(32, rows, shares_prefixes=True, **given)
    if expected:
        assert shape.shares_prefixes and shape.block_queries == expected and shape.num_words > usual.num_words
    else:
        assert shape == usual
