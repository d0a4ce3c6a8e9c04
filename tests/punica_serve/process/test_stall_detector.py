from punica_serve.process.stall_detector import StallDetector


def test_a_value_that_changes_never_stalls() -> None:
    detector = StallDetector(0, num_observations=2)
    assert not any(detector.observe(value) for value in (1, 1, 2, 2, 3, 3))


def test_equal_observations_are_counted_from_the_first_value() -> None:
    detector = StallDetector(0, num_observations=3)
    assert [detector.observe(0) for _ in range(4)] == [False, False, True, True]


def test_a_change_starts_the_count_over() -> None:
    detector = StallDetector(0, num_observations=2)
    assert [detector.observe(value) for value in (0, 1, 1, 1)] == [False, False, False, True]
