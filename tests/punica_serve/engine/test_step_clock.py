"""The step clock, over a clock of the test's own."""

import pytest

from punica_serve.engine.step_clock import StepClock


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, as a list of one."""
    now = [100.0]
    monkeypatch.setattr("punica_serve.engine.step_clock.time.perf_counter", lambda: now[0])
    return now


def test_a_step_begins_when_the_one_before_it_ends(now: list[float]) -> None:
    clock = StepClock()
    now[0] = 100.010
    assert clock.end(launched_s=100.0) == pytest.approx(0.010)
    now[0] = 100.016
    assert clock.end(launched_s=100.002) == pytest.approx(0.006)
    now[0] = 100.030
    assert clock.end(launched_s=100.020) == pytest.approx(0.010)


def test_a_launch_waits_as_long_as_the_device_is_surely_busy(now: list[float]) -> None:
    clock = StepClock()
    assert clock.time_to_launch_s(launched_s=100.0) == 0, "nothing is known of steps yet"
    now[0] = 100.010
    clock.end(launched_s=100.0)
    assert clock.time_to_launch_s(launched_s=100.001) == pytest.approx(0.008)
    now[0] = 100.0185
    assert clock.time_to_launch_s(launched_s=100.001) == 0


def test_short_steps_are_forgotten_slowly(now: list[float]) -> None:
    clock = StepClock()
    for duration_s, _ in ((0.004, 0), *((0.008, n) for n in range(10))):
        launched_s = now[0]
        now[0] += duration_s
        clock.end(launched_s)
    assert 0.002 < clock.time_to_launch_s(launched_s=now[0]) < 0.003
    for _ in range(40):
        launched_s = now[0]
        now[0] += 0.008
        clock.end(launched_s)
    assert clock.time_to_launch_s(launched_s=now[0]) == pytest.approx(0.006)
