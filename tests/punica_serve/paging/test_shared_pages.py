"""The pool of shared pages: every page is free or held, and known pages are free pages that still know something."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from punica_serve.paging.shared_pages import MAX_SHARING, SharedPagePool, max_pages_named


def _known(pool: SharedPagePool, names: str) -> list[int]:
    """Pages that are held once and known by these names."""
    pages = pool.allocate(len(names))
    for page, name in zip(pages, names, strict=True):
        pool.name(page, name.encode())
    return pages


def _keys(names: str) -> list[bytes]:
    return [name.encode() for name in names]


def test_pages_without_holders_are_free_and_found() -> None:
    pool = SharedPagePool(4)
    pages = _known(pool, "abc")
    assert pool.num_free == 1 and pool.find(_keys("abx")) == pages[:2] and pool.num_held(pages) == 3
    pool.free(pages)
    assert pool.num_free == 4 and pool.find(_keys("abc")) == pages and pool.num_held(pages) == 0
    pool.share(pages[:2])
    assert pool.num_free == 2 and pool.num_shared == 0
    pool.check_invariants(pages[:2])


def test_what_knows_nothing_is_allocated_first_then_the_tail_of_the_oldest() -> None:
    pool = SharedPagePool(5)
    old, new = _known(pool, "ab"), _known(pool, "c")
    pool.free(old)
    pool.free(new)
    unknown = pool.allocate(2)
    assert not {*unknown} & {*old, *new}
    assert pool.allocate(3) == [old[1], old[0], new[0]], "a page is of no use without those before it"
    assert pool.num_known == 0 and pool.find(_keys("a")) == []
    with pytest.raises(AssertionError):
        pool.allocate(1)


def test_a_page_is_free_when_its_last_holder_leaves() -> None:
    pool = SharedPagePool(2)
    pages = _known(pool, "a")
    pool.share(pages)
    assert pool.num_shared == 1 and pool.num_free == 1
    pool.free(pages)
    assert pool.num_free == 1
    pool.check_invariants(pages)
    pool.free(pages)
    assert pool.num_free == 2 and pool.num_shared == 0
    pool.check_invariants([])


def test_a_page_found_again_is_the_last_to_go() -> None:
    pool = SharedPagePool(2)
    first, second = _known(pool, "a"), _known(pool, "b")
    pool.free(first)
    pool.free(second)
    pool.share(first)
    pool.free(first)
    assert pool.allocate(1) == second


def test_forgotten_pages_are_not_found_but_stay_with_their_holders() -> None:
    pool = SharedPagePool(3)
    held, idle = _known(pool, "a"), _known(pool, "b")
    pool.share(held)
    pool.free(idle)
    pool.forget([*held, *idle])
    assert pool.find(_keys("a")) == pool.find(_keys("b")) == [] and pool.num_free == 2
    pool.check_invariants([*held, *held])
    pool.free(held)
    pool.check_invariants(held)
    pool.free(held)
    assert pool.num_free == 3


def test_the_second_page_of_the_same_contents_stays_unknown() -> None:
    pool = SharedPagePool(2)
    first, second = _known(pool, "a"), _known(pool, "a")
    assert pool.find(_keys("a")) == first
    pool.free(second)
    assert pool.num_known == 1 and pool.allocate(1) == second


def test_no_step_names_more_pages_than_its_table_holds() -> None:
    pool = SharedPagePool(2)
    pages = _known(pool, "a")
    num_held = 1
    while found := pool.find(_keys("a")):
        pool.share(found)
        num_held += 1
    assert num_held == 1 + 2 * MAX_SHARING <= max_pages_named(2, is_sharing=True)
    pool.free(pages)
    assert pool.find(_keys("a")) == pages


@given(st.lists(st.tuples(st.sampled_from(["start", "end", "forget"]), st.integers(0, 9), st.integers(1, 4))))
def test_any_history_keeps_the_accounting_whole(history: list[tuple[str, int, int]]) -> None:
    """A request's contents are a number: page n of request i is known as (i % 3, n)."""
    pool, held = SharedPagePool(6), list[list[int]]()
    for deed, number, length in history:
        if deed == "start":
            keys = [bytes((number % 3, place)) for place in range(length)]
            found = pool.find(keys)
            if length - pool.num_held(found) > pool.num_free:
                continue
            pool.share(found)
            pages = found + pool.allocate(length - len(found))
            for page, key in zip(pages, keys, strict=True):
                pool.name(page, key)
            held.append(pages)
        elif held and deed == "end":
            pool.free(held.pop(number % len(held)))
        elif held:
            pool.forget(held[number % len(held)])
        everything = [page for pages in held for page in pages]
        pool.check_invariants(everything)
        assert pool.num_free == 6 - len(Counter(everything))
