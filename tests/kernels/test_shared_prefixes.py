"""Which requests' page tables begin alike."""

from itertools import accumulate

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from punica_kernels.shared_prefixes import MIN_PREFIX_TOKENS, PrefixGroups, find_prefix_groups

PAGE_SIZE = 64
MIN_PAGES = MIN_PREFIX_TOKENS // PAGE_SIZE


def _find(tables: list[list[int]], lengths: list[int] | None = None) -> PrefixGroups:
    """``lengths``: all pages are full by default, but for the last one's last token."""
    lengths = lengths or [max(0, len(table) * PAGE_SIZE - 1) for table in tables]
    starts = [0, *accumulate(map(len, tables))]
    pages = np.array([page for table in tables for page in table], np.int32)
    return find_prefix_groups(pages, starts, lengths, PAGE_SIZE)


def _groups(tables: list[list[int]], lengths: list[int] | None = None) -> dict[frozenset[int], int]:
    """The pages of each group's prefix."""
    found = _find(tables, lengths)
    members = [
        found.requests[first:end].tolist() for first, end in zip(found.starts[:-1], found.starts[1:], strict=True)
    ]
    return dict(zip(map(frozenset, members), found.num_pages.tolist(), strict=True))


tables = st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=9)


@given(tables, st.data())
def test_groups_share_what_they_say_and_no_newest_page(tables: list[list[int]], data: st.DataObject) -> None:
    """Few page numbers, so that tables begin alike by chance, and have equal pages behind different ones."""
    lengths = [data.draw(st.integers(max(0, (len(table) - 1) * PAGE_SIZE), len(table) * PAGE_SIZE)) for table in tables]
    found = _groups(tables, lengths)
    members = [request for group in found for request in group]
    assert len(members) == len(set(members))
    for group, num_pages in found.items():
        assert len(group) >= 2 and num_pages >= MIN_PAGES
        assert len({tuple(tables[request][:num_pages]) for request in group}) == 1
        assert all(num_pages * PAGE_SIZE < lengths[request] for request in group)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(MIN_PAGES, 5))
def test_requests_of_one_prefix_are_one_group_wherever_they_stand(prefixes: list[int], num_pages: int) -> None:
    tables = [
        [*range(10 * prefix, 10 * prefix + num_pages), 100 + row, 200 + row] for row, prefix in enumerate(prefixes)
    ]
    expected = {
        frozenset(row for row, own in enumerate(prefixes) if own == prefix): num_pages
        for prefix in set(prefixes)
        if prefixes.count(prefix) > 1
    }
    assert _groups(tables) == expected


def test_a_prefix_shorter_than_128_tokens_is_none() -> None:
    assert _groups([[1, 2, 3], [1, 2, 4]]) == {frozenset({0, 1}): 2}
    assert _groups([[1, 3, 5], [1, 2, 4]]) == {}
    assert _groups([]) == {} and _groups([[1], []]) == {}


def test_a_page_that_holds_the_newest_token_is_not_shared() -> None:
    pages = [1, 2, 3]
    assert _groups([pages, pages], [3 * PAGE_SIZE, 3 * PAGE_SIZE]) == {frozenset({0, 1}): 2}
    assert _groups([pages, pages], [2 * PAGE_SIZE, 3 * PAGE_SIZE]) == {}


def test_equal_pages_behind_different_ones_are_not_a_prefix() -> None:
    """Two requests may have computed the same page, and found the next one."""
    assert _groups([[1, 2, 3, 4], [9, 2, 3, 5]]) == {}


def test_nested_prefixes_are_cut_where_most_would_be_lost() -> None:
    system, chats = [1, 2], ([*range(10, 20)], [*range(20, 30)])
    tables = [[*system, *chats[row % 2], 100 + row] for row in range(6)]
    assert _groups(tables) == {frozenset({0, 2, 4}): 12, frozenset({1, 3, 5}): 12}
    longer = [*range(1, 9)]
    tables = [[*longer, *tail, 100 + row] for row, tail in enumerate(([10, 11], [10, 11], [20], [30]))]
    assert _groups(tables) == {frozenset({0, 1, 2, 3}): 8}
