"""How many pages a request may hold, with a window and without one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from punica_serve.batching_rules import pages_for
from punica_serve.paging.page_rule import UNLIMITED, PageRule


def test_without_a_window_a_request_holds_the_pages_of_its_tokens_and_starts_with_one_for_the_next() -> None:
    rule = PageRule(16)
    assert [rule.held_by(num_tokens) for num_tokens in (15, 16, 17)] == [1, 1, 2]
    assert [rule.to_start(num_tokens) for num_tokens in (15, 16)] == [1, 2]
    assert [rule.table_length(num_tokens, 5_000) for num_tokens in (16, 1 << 20)] == [1, 1 << 16]
    assert rule.first_kept(5_000) == 0
    assert rule.longest(3) == 48


@pytest.mark.parametrize(
    ("num_cached", "first_kept"), [(0, 0), (99, 0), (114, 0), (115, 1), (130, 1), (131, 2)], ids=str
)
def test_a_page_is_given_back_once_the_next_row_does_not_see_its_last_token(num_cached: int, first_kept: int) -> None:
    """The row at position 115 sees tokens 16 to 115."""
    assert PageRule(16, window=100, chunk_tokens=32).first_kept(num_cached) == first_kept


def test_a_request_of_any_length_fits_the_pages_of_a_window_and_a_chunk() -> None:
    rule = PageRule(16, window=4096, chunk_tokens=512)
    assert rule.most_pages == 289 == -(-(4096 + 512 - 2) // 16) + 1
    assert rule.most_decoding_pages == 257
    assert [rule.held_decoding(num_tokens) for num_tokens in (100, 4112, 4113, 1 << 20)] == [7, 257, 257, 257]
    assert [rule.held_by(num_tokens) for num_tokens in (100, 4624, 4625, 1 << 20)] == [7, 289, 289, 289]
    assert [rule.longest(num_pages) for num_pages in (0, 288, 289)] == [0, 4608, UNLIMITED]


@given(
    page_size=st.integers(1, 9),
    window=st.integers(1, 40),
    chunk_tokens=st.integers(1, 30),
    chunks=st.lists(st.integers(1, 30), min_size=1, max_size=30),
)
def test_the_most_pages_are_enough_for_every_chunk_and_no_more_than_the_worst_one_needs(
    page_size: int, window: int, chunk_tokens: int, chunks: list[int]
) -> None:
    rule = PageRule(page_size, window, chunk_tokens)
    num_cached, num_tokens = 0, sum(min(each, chunk_tokens) for each in chunks)
    for each in chunks:
        end = num_cached + min(each, chunk_tokens)
        length = rule.table_length(num_tokens, num_cached)
        assert length * page_size >= end, "a chunk has no page to write to"
        assert length - rule.first_kept(num_cached) <= rule.held_by(num_tokens)
        first_seen = max(0, num_cached - window + 1)
        assert rule.first_kept(num_cached) * page_size <= first_seen < (rule.first_kept(num_cached) + 1) * page_size
        num_cached = end
    needs = [pages_for(start + window + chunk_tokens - 1, page_size) - start // page_size for start in range(page_size)]
    assert rule.most_pages == max(needs)
