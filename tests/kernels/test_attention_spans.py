"""Spans of attention: every row sees every token of its past once, and the table never runs over."""

from itertools import accumulate

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from punica_kernels.attention_spans import SPAN_WORDS, AttentionShape, Indices

PAGE_SIZE = 4

Request = tuple[int, int]
#: (tokens in all, query rows): none, the newest few, all.
requests = st.integers(0, 200).flatmap(lambda length: st.tuples(st.just(length), st.integers(0, length)))


def _spans(shape: AttentionShape, wanted: list[Request]) -> Indices:
    """[spans, SPAN_WORDS]; each request's pages begin at a multiple of 1000."""
    words = np.zeros(shape.num_words, np.int32)
    lengths = [length for length, _ in wanted]
    starts = [0, *accumulate(rows for _, rows in wanted)]
    shape.fill(words, lengths, starts, [1000 * request for request in range(len(wanted))], PAGE_SIZE)
    table = words.reshape(-1, SPAN_WORDS).astype(np.int64)
    num_used = int((table[:, 0] >= 0).sum())
    assert (table[:num_used, 0] >= 0).all() and (table[num_used:] == -1).all()
    return table[:num_used]


@given(st.lists(requests, max_size=6), st.integers(1, 30), st.integers(1, 40), st.sampled_from([1, 4, 16]))
def test_rows_see_their_past_once(wanted: list[Request], num_programs: int, min_tokens: int, block_rows: int) -> None:
    shape = AttentionShape(6, 200, 2, 2, block_rows, num_programs, min_tokens)
    spans = _spans(shape, wanted)
    starts = [0, *accumulate(rows for _, rows in wanted)]
    seen: dict[int, list[int]] = {row: [] for row in range(starts[-1])}
    for first_row, num_rows, first_page, tokens, first_seen, *_ in sorted(spans.tolist(), key=lambda span: span[2]):
        assert 0 < num_rows <= block_rows and tokens > 0
        request, start = first_page // 1000, first_page % 1000 * PAGE_SIZE
        assert starts[request] <= first_row and first_row + num_rows <= starts[request + 1]
        for row in range(num_rows):
            seen[first_row + row] += range(start, start + min(tokens, max(first_seen + row + 1, 0)))
    for request, (length, rows) in enumerate(wanted):
        for row in range(rows):
            assert seen[starts[request] + row] == list(range(length - rows + row + 1))


@given(st.lists(requests, max_size=6), st.integers(1, 30), st.integers(1, 40))
def test_parts_of_a_block_stand_together_and_have_room(
    wanted: list[Request], num_programs: int, min_tokens: int
) -> None:
    shape = AttentionShape(6, 200, 2, 2, 16, num_programs, min_tokens)
    spans = _spans(shape, wanted)
    assert (np.diff(spans[:, 3]) <= 0).all()
    blocks: dict[int, list[list[int]]] = {}
    for span in sorted(spans.tolist(), key=lambda span: span[2]):
        blocks.setdefault(span[0], []).append(span[5:])
    places: list[int] = []
    for parts in blocks.values():
        first = parts[0][1]
        if len(parts) == 1:
            assert parts[0][0] == -1 and parts[0][2] == 1
        else:
            assert parts == [[first + number, first, len(parts)] for number in range(len(parts))]
            places += range(first, first + len(parts))
    assert sorted(places) == list(range(len(places))) and len(places) <= shape.max_parts


def test_long_contexts_are_divided_and_short_ones_left_whole() -> None:
    shape = AttentionShape(4, 1, 2, 2, 16, num_programs=8, min_part_tokens=64)
    spans = _spans(shape, [(1000, 1), (130, 1), (20, 1), (3, 1)])
    # 1153 tokens for 8 programs: 145 each, in whole pages, and the parts of a request are equal but for the last.
    assert spans[:, [0, 3]].tolist() == [*[[0, 144]] * 6, [0, 136], [1, 130], [2, 20], [3, 3]]


def test_what_does_not_fit_is_refused() -> None:
    shape = AttentionShape.of(2, 1, heads=4, kv_heads=2, dtype=torch.float32, device=torch.device("cpu"))
    with pytest.raises(ValueError, match="3 requests of at most 1 rows do not fit"):
        _spans(shape, [(1, 1)] * 3)
    with pytest.raises(ValueError, match="1 requests of at most 2 rows do not fit"):
        _spans(shape, [(5, 2)])
    with pytest.raises(ValueError, match="more query rows than tokens"):
        _spans(shape, [(1, 2)])
    with pytest.raises(ValueError, match=r"words must be \[\d+\], got \[3\]"):
        shape.fill(np.zeros(3, np.int32), [1], [0, 1], [0], PAGE_SIZE)
