"""A disk hangs when no chunk of any load has come for many waits, however long these took."""

from punica_serve.engine.adapters.disk_watch import LOOK_S, DiskWatch, Patience

_MOST_WAITS = 200  # 10 s


def _is_over(patience: Patience) -> bool:
    """After one more wait in vain."""
    patience.note_wait()
    return patience.is_over


def test_a_load_is_patient_for_so_many_waits_in_vain() -> None:
    patience = Patience(DiskWatch())
    assert [_is_over(patience) for _ in range(_MOST_WAITS)] == [*(_MOST_WAITS - 1) * [False], True]
    assert _MOST_WAITS * LOOK_S == 10.0


def test_readers_that_wait_for_no_disk_get_a_tenth_of_it() -> None:
    patience = Patience(DiskWatch())
    waits = [(_is_over(patience), patience.is_over_for_idle)[1] for _ in range(_MOST_WAITS)]
    assert waits == [*(_MOST_WAITS // 10 - 1) * [False], *(9 * _MOST_WAITS // 10 + 1) * [True]]


def test_a_chunk_of_any_load_starts_the_patience_over() -> None:
    watch = DiskWatch()
    patience = Patience(watch)
    for chunk in range(3):
        assert not any(_is_over(patience) for _ in range(_MOST_WAITS - 1))
        watch.newest_chunk_s = 1.0 + chunk
    assert not any(_is_over(patience) for _ in range(_MOST_WAITS - 1)) and _is_over(patience)


def test_the_disk_answers_again_once_no_load_waits_for_it() -> None:
    watch = DiskWatch()
    with watch.hanging():
        with watch.hanging():
            assert not watch.answers
        assert not watch.answers
    assert watch.answers
