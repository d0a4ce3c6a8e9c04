import pytest

from punica_serve.store.pace import MinRate, Pace

#: 1000 bytes in each window.
RATE = MinRate(bytes_per_s=100, window_s=10.0)


def test_nothing_is_waited_for_to_the_end_of_the_window() -> None:
    assert Pace(RATE).patience_s == 10.0


def test_a_trickle_does_not_make_the_window_longer() -> None:
    pace = Pace(RATE)
    for second in range(1, 10):
        pace.note(1.0, 1)
        assert pace.patience_s == 10.0 - second


@pytest.mark.parametrize(("num_bytes", "patience_s"), [(999, 6.0), (1000, 16.0)])
def test_what_has_come_in_time_is_rest_until_the_next_window_ends(num_bytes: int, patience_s: float) -> None:
    pace = Pace(RATE)
    pace.note(4.0, num_bytes)
    assert pace.patience_s == patience_s


def test_each_window_counts_anew() -> None:
    pace = Pace(RATE)
    pace.note(4.0, 1_000_000)
    pace.note(8.0, 10)
    assert pace.patience_s == 8.0
    pace.note(1.0, 990)
    assert pace.patience_s == 17.0


def test_a_sender_that_keeps_the_rate_is_always_waited_for() -> None:
    pace = Pace(RATE)
    for _ in range(200):
        assert pace.patience_s > 0.9
        pace.note(0.9, 100)
