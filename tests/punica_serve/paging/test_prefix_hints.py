"""A worker tells the scheduler of prefixes in reports of bounded size, and tells a new scheduler again."""

from punica_serve.paging.prefix_hints import MAX_KEPT, MAX_TOLD, PrefixHints


def _noted(hints: range) -> PrefixHints:
    noted = PrefixHints()
    for hint in hints:
        noted.note(hint)
    return noted


def _all_told(hints: PrefixHints) -> list[tuple[int, ...]]:
    return list(iter(hints.take, ()))


def test_a_report_has_the_newest_of_many_and_later_ones_the_others() -> None:
    assert _all_told(_noted(range(100))) == [tuple(range(100 - MAX_TOLD, 100)), tuple(range(100 - MAX_TOLD))]


def test_one_that_is_found_again_is_the_newest_and_told_once() -> None:
    hints = _noted(range(3))
    hints.note(0)
    assert _all_told(hints) == [(1, 2, 0)]
    hints.note(1)
    assert _all_told(hints) == [(1,)]


def test_a_new_scheduler_hears_of_all_that_are_kept_the_newest_first() -> None:
    hints = _noted(range(MAX_KEPT + 5))
    _all_told(hints)
    hints.note(7)
    hints.reset()
    told = _all_told(hints)
    assert [len(each) for each in told] == [MAX_TOLD] * (MAX_KEPT // MAX_TOLD)
    assert told[0][-1] == 7
    assert {hint for each in told for hint in each} == set(range(5, MAX_KEPT + 5))
    assert hints.take() == (), "until the next one"


def test_nothing_is_told_before_anything_is_known() -> None:
    hints = PrefixHints()
    hints.reset()
    assert hints.take() == ()
