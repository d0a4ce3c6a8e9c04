"""A worker tells the scheduler of prefixes in reports of bounded size, and tells a new scheduler again."""

from punica_serve.paging.prefix_hints import MAX_HINTS, PrefixHints


def _noted(hints: range) -> PrefixHints:
    noted = PrefixHints()
    for hint in hints:
        noted.note(hint)
    return noted


def test_a_report_has_the_newest_of_many_the_newest_last() -> None:
    hints = _noted(range(MAX_HINTS + 5))
    assert hints.take() == tuple(range(5, MAX_HINTS + 5))
    assert hints.take() == ()


def test_one_that_is_found_again_is_the_newest_and_told_once() -> None:
    hints = _noted(range(3))
    hints.note(0)
    assert hints.take() == (1, 2, 0)
    hints.note(1)
    assert hints.take() == (1,)


def test_a_new_scheduler_hears_of_all_in_the_order_of_their_use() -> None:
    hints = _noted(range(4))
    hints.take()
    hints.note(1)
    hints.reset()
    assert hints.take() == (0, 2, 3, 1)
    assert hints.take() == (), "until the next one"


def test_nothing_is_told_before_anything_is_known() -> None:
    hints = PrefixHints()
    hints.reset()
    assert hints.take() == ()
