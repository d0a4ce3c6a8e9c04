import pytest
from hypothesis import given
from hypothesis import strategies as st

from punica_serve.engine.memory.page_pool import PagePool


def test_pages_are_handed_out_once() -> None:
    pool = PagePool(5)
    first, second = pool.allocate(2), pool.allocate(3)
    assert sorted(first + second) == [0, 1, 2, 3, 4]
    assert pool.num_free == 0


def test_no_pages_is_a_fine_amount() -> None:
    pool = PagePool(2)
    assert pool.allocate(0) == []
    assert pool.num_free == 2


def test_freed_pages_can_be_taken_again() -> None:
    pool = PagePool(3)
    pages = pool.allocate(3)
    pool.free(pages[:1])
    assert pool.allocate(1) == pages[:1]


def test_audit_finds_a_lost_page() -> None:
    pool = PagePool(3)
    pages = pool.allocate(2)
    with pytest.raises(AssertionError, match="lost or held twice"):
        pool.check_invariants(held=pages[:1])


def test_audit_finds_a_page_held_twice() -> None:
    pool = PagePool(3)
    pages = pool.allocate(2)
    with pytest.raises(AssertionError, match="lost or held twice"):
        pool.check_invariants(held=pages + pages[:1])


@given(st.lists(st.integers(min_value=-3, max_value=4), max_size=60))
def test_accounting_balances_after_any_history(amounts: list[int]) -> None:
    """Positive amounts allocate as far as there are pages; negative ones free."""
    pool, held = PagePool(16), []
    for amount in amounts:
        if amount >= 0:
            held += pool.allocate(min(amount, pool.num_free))
        else:
            pool.free(held[amount:])
            del held[amount:]
        pool.check_invariants(held)
