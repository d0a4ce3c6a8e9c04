"""Contexts divided into parts: every token in one part, none twice, no more parts than asked for."""

from itertools import count

import numpy as np
import pytest

from punica_serve.engine.context_parts import divide_longest
from punica_serve.engine.step_pages import page_runs

PAGE_SIZE, NULL_PAGE = 16, 9999


def _tokens(indices: list[int], length: int) -> list[tuple[int, int]]:
    return [(page, offset) for page in indices for offset in range(PAGE_SIZE)][:length]


@pytest.mark.parametrize("num_copies", [1, 3, 8])
@pytest.mark.parametrize("lengths", [[1, 1], [16, 17], [300, 20, 1000, 5], [4096], [129, 128, 127, 257]], ids=str)
def test_the_parts_of_a_request_are_its_context(lengths: list[int], num_copies: int) -> None:
    fresh = count()
    pages = [[next(fresh) for _ in range(-(-length // PAGE_SIZE))] for length in lengths]
    runs = page_runs(lengths, pages, PAGE_SIZE)
    parts, starts = divide_longest(runs, num_copies, page_size=PAGE_SIZE, null_page=NULL_PAGE)
    assert len(parts.lengths) == len(lengths) + num_copies
    assert starts[0] == 0 and starts[-1] <= num_copies
    assert all(table.dtype == np.int32 for table in (starts, parts.lengths, parts.indptr, parts.indices))

    def tokens(part: int) -> list[tuple[int, int]]:
        length, own = int(parts.lengths[part]), parts.indices[parts.indptr[part] : parts.indptr[part + 1]].tolist()
        assert parts.last_page_lengths[part] == length - (len(own) - 1) * PAGE_SIZE
        return _tokens(own, length)

    for request, length in enumerate(lengths):
        copies = range(len(lengths) + int(starts[request]), len(lengths) + int(starts[request + 1]))
        assert [token for part in (request, *copies) for token in tokens(part)] == _tokens(pages[request], length)
    for part in range(len(lengths) + int(starts[-1]), len(parts.lengths)):
        assert tokens(part) == [(NULL_PAGE, 0)]


def test_the_longest_is_divided_and_short_ones_are_left_whole() -> None:
    pages = [list(range(64)), list(range(64, 72)), list(range(72, 80))]
    _, starts = divide_longest(page_runs([1000, 128, 120], pages, PAGE_SIZE), 3, page_size=PAGE_SIZE, null_page=0)
    assert starts.tolist() == [0, 3, 3, 3]
