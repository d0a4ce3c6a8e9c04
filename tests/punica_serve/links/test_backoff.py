from punica_serve.links.backoff import Backoff


def test_waits_double_up_to_the_highest_with_jitter_below() -> None:
    backoff = Backoff(1.0, 5.0, reset_after_s=60.0)
    for expected in (1.0, 2.0, 4.0, 5.0, 5.0):
        assert expected / 2 <= backoff.after(0.0) <= expected


def test_a_long_life_starts_over_and_a_short_one_does_not() -> None:
    backoff = Backoff(1.0, 64.0, reset_after_s=60.0)
    for _ in range(4):
        backoff.after(0.0)
    assert backoff.after(59.9) >= 8.0
    assert backoff.after(60.0) <= 1.0
