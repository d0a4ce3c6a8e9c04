import pytest

from punica_runner.watchdog import Watchdog
from punica_serve.protocol import Pong


def watchdog() -> Watchdog:
    """Its silence timeout is four pings, its step timeout eight."""
    return Watchdog(silence_timeout_s=4.0, step_timeout_s=8.0)


def verdicts(watchdog: Watchdog, num_pings: int, *, turns: list[int] | None = None) -> list[str | None]:
    """Its verdicts before so many pings, answered with these numbers of turns, or not answered."""
    told = []
    for index in range(num_pings):
        told.append(watchdog.verdict())
        ping = watchdog.ping()
        if turns is not None:
            watchdog.answered(Pong(ping.number, turns[index]))
    return told


def test_pings_are_sent_four_times_as_often_as_they_must_be_answered() -> None:
    assert watchdog().interval_s == 1.0


def test_a_worker_that_answers_and_turns_lives_on() -> None:
    assert verdicts(watchdog(), 50, turns=list(range(50))) == [None] * 50


def test_a_worker_that_answers_nothing_is_given_up_after_four_pings() -> None:
    assert verdicts(watchdog(), 5) == [None] * 4 + ["it has answered no ping for 4 s"]


def test_late_answers_are_answers() -> None:
    dog = watchdog()
    assert verdicts(dog, 4) == [None] * 4
    dog.answered(Pong(1, 0))
    assert verdicts(dog, 4) == [None] * 4


def test_a_worker_whose_step_loop_stalls_is_killed_after_the_timeout() -> None:
    told = verdicts(watchdog(), 11, turns=[7] * 11)
    assert told == [None] * 10 + ["it has made no step for 8 s, though a request could run"]


def test_answers_that_are_late_say_nothing_about_turns() -> None:
    """Each one comes three pings late, though the worker makes a turn between any two pings."""
    dog = Watchdog(silence_timeout_s=4.0, step_timeout_s=0.5)
    for number in range(1, 40, 4):
        assert verdicts(dog, 4) == [None] * 4
        dog.answered(Pong(number, number))


@pytest.mark.parametrize("num_late", [1, 2, 3, 4])
def test_a_stalled_step_loop_is_found_as_soon_by_late_answers(num_late: int) -> None:
    """Within the step timeout, and the time in which the next answer comes."""
    dog = watchdog()
    for number in range(1, 8 + 2, num_late):
        assert verdicts(dog, num_late) == [None] * num_late
        dog.answered(Pong(number, 7))
    assert verdicts(dog, num_late) == [None] * num_late
    dog.answered(Pong(number + num_late, 7))
    assert verdicts(dog, 1) == ["it has made no step for 8 s, though a request could run"]


def test_a_turn_in_time_starts_the_patience_over() -> None:
    assert verdicts(watchdog(), 14, turns=[7] * 7 + [8] * 7) == [None] * 14
