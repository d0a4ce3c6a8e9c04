"""The step clock, over a clock of the test's own."""

from dataclasses import dataclass
from typing import cast

import pytest

from punica_serve.engine.in_flight import InFlight, StepKind
from punica_serve.engine.step_clock import StepClock

DECODE, PREFILL = StepKind(0, 6), StepKind(8, 6)


@dataclass(frozen=True)
class Launched:
    """The part of a step in flight that the clock reads."""

    launched_s: float
    kind: StepKind


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, as a list of one."""
    now = [100.0]
    monkeypatch.setattr("punica_serve.engine.step_clock.time.perf_counter", lambda: now[0])
    return now


def launched(launched_s: float, kind: StepKind = DECODE) -> InFlight:
    return cast(InFlight, Launched(launched_s, kind))


def run(clock: StepClock, now: list[float], duration_s: float, kind: StepKind = DECODE) -> None:
    """A step that is launched when the device is idle."""
    step = launched(now[0], kind)
    now[0] += duration_s
    clock.end(step)


def test_a_step_begins_when_the_one_before_it_ends(now: list[float]) -> None:
    clock = StepClock()
    now[0] = 100.010
    assert clock.end(launched(100.0)) == pytest.approx(0.010)
    now[0] = 100.016
    assert clock.end(launched(100.002)) == pytest.approx(0.006)
    now[0] = 100.030
    assert clock.end(launched(100.020)) == pytest.approx(0.010)


def test_a_launch_waits_as_long_as_the_device_is_surely_busy(now: list[float]) -> None:
    clock = StepClock()
    assert clock.time_to_launch_s(launched(100.0)) == 0, "nothing is known of steps yet"
    now[0] = 100.010
    clock.end(launched(100.0))
    assert clock.time_to_launch_s(launched(100.001)) == pytest.approx(0.009)
    now[0] = 100.0195
    assert clock.time_to_launch_s(launched(100.001)) == 0


def test_short_steps_are_forgotten_slowly(now: list[float]) -> None:
    clock = StepClock()
    run(clock, now, 0.004)
    for _ in range(10):
        run(clock, now, 0.008)
    assert 0.003 < clock.time_to_launch_s(launched(now[0])) < 0.004
    for _ in range(40):
        run(clock, now, 0.008)
    assert clock.time_to_launch_s(launched(now[0])) == pytest.approx(0.007)


def test_a_launch_waits_longer_behind_a_prefill_than_behind_decodes(now: list[float]) -> None:
    clock = StepClock()
    run(clock, now, 0.007)
    assert clock.time_to_launch_s(launched(now[0], PREFILL)) == pytest.approx(0.006), "none is known: as the shortest"
    run(clock, now, 0.015, PREFILL)
    run(clock, now, 0.007)
    assert clock.time_to_launch_s(launched(now[0], PREFILL)) == pytest.approx(0.014)
    assert clock.time_to_launch_s(launched(now[0])) == pytest.approx(0.006)
    forecast = clock.forecast(launched(now[0], PREFILL))
    assert (forecast.starts_in_s, forecast.lasts_s) == pytest.approx((0.015, 0.007))
    for _ in range(2):
        run(clock, now, 0.010, PREFILL)
    assert clock.time_to_launch_s(launched(now[0], PREFILL)) == pytest.approx(0.009), "as short as any of its kind"


def test_a_step_that_seems_short_once_does_not_count(now: list[float]) -> None:
    clock = StepClock()
    for duration_s in (0.008, 0.008, 0.006, 0.008):
        run(clock, now, duration_s)
        assert clock.time_to_launch_s(launched(now[0])) == pytest.approx(0.007)
    for _ in range(2):
        run(clock, now, 0.006)
    assert clock.time_to_launch_s(launched(now[0])) == pytest.approx(0.005)


def test_late_launches_do_not_make_steps_seem_longer(now: list[float]) -> None:
    """The end of a step is noticed only after the launch behind it: each seems 20 ms longer, for all that is known."""
    clock = StepClock()
    run(clock, now, 0.008)
    for _ in range(50):
        step = launched(now[0])
        now[0] += 0.028
        clock.launched(clock.forecast(step), is_late=True, has_ended=True)
        assert clock.end(step) == pytest.approx(0.028)
    assert clock.forecast(launched(now[0])).starts_in_s == pytest.approx(0.008)
    run(clock, now, 0.009)
    assert clock.forecast(launched(now[0])).starts_in_s == pytest.approx(0.00816)


def test_the_margin_is_of_the_launch_behind_the_step_that_ended(now: list[float]) -> None:
    clock = StepClock()
    step = launched(now[0])
    for is_late, early_s in ((False, 0.003), (True, 0.0)):
        clock.launched(clock.forecast(step), is_late=is_late, has_ended=is_late)
        now[0] += 0.003
        clock.end(step)
        assert clock.margin is not None and clock.margin.early_s == pytest.approx(early_s)
        assert clock.margin.lead_s == pytest.approx(0.001, abs=0.00011)
    clock.end(step)
    assert clock.margin is None, "nothing was launched behind it"


def test_launches_that_are_late_begin_earlier(now: list[float]) -> None:
    clock = StepClock()
    run(clock, now, 0.008)
    step = launched(now[0])
    assert clock.time_to_launch_s(step) == pytest.approx(0.007)
    now[0] += 0.007
    clock.launched(clock.forecast(step), is_late=True, has_ended=True)
    assert clock.time_to_launch_s(launched(now[0])) == pytest.approx(0.0069)
    clock.launched(clock.forecast(step), is_late=False, has_ended=False)
    assert 0.0069 < clock.time_to_launch_s(launched(now[0])) < 0.007


def test_a_step_that_ends_while_the_next_one_samples_is_noticed_late_but_leaves_no_gap(now: list[float]) -> None:
    clock = StepClock()
    run(clock, now, 0.008)
    step = launched(now[0])
    now[0] += 0.009
    clock.launched(clock.forecast(step), is_late=False, has_ended=True)
    clock.end(step)
    assert clock.margin is not None and clock.margin.early_s == 0.0
    assert clock.margin.lead_s <= 0.001, "the launch was in time"
    assert clock.forecast(launched(now[0])).starts_in_s == pytest.approx(0.008), "the step seems longer than it was"


def test_a_prefill_alone_lasts_as_long_as_known_ones_that_waited_for_nothing(now: list[float]) -> None:
    clock = StepClock()
    assert clock.prefill_s(128) == 0.0, "nothing is known yet"
    run(clock, now, 0.006)
    assert clock.prefill_s(128) == pytest.approx(0.006), "as any step"
    run(clock, now, 0.030, StepKind(8, 0, is_early=True))
    run(clock, now, 0.015, PREFILL)
    run(clock, now, 0.008, StepKind(5, 0))
    assert clock.prefill_s(128) == clock.prefill_s(20) == pytest.approx(0.008)
    run(clock, now, 0.011, StepKind(8, 0))
    assert (clock.prefill_s(200), clock.prefill_s(20)) == pytest.approx((0.011, 0.008))
    assert clock.prefill_s(15) == pytest.approx(0.008), "no longer than one of more tokens"


def test_one_that_is_not_known_lasts_no_longer_than_those_of_its_size_that_waited(now: list[float]) -> None:
    """So it is where every request brings a cold adapter."""
    clock = StepClock()
    run(clock, now, 0.006)
    run(clock, now, 0.040, StepKind(9, 0, is_early=True))
    run(clock, now, 0.030, StepKind(8, 0, is_early=True))
    assert clock.prefill_s(128) == clock.prefill_s(20) == pytest.approx(0.030), "not as short as a decode"
    assert clock.prefill_s(256) == pytest.approx(0.040)
    assert clock.prefill_s(512) == pytest.approx(0.006, rel=0.1), "nothing bounds it"
    run(clock, now, 0.015, PREFILL)
    assert clock.prefill_s(128) == pytest.approx(0.015), "decodes made its step longer, too"


def test_the_first_step_that_may_wait_lasts_as_long_as_one_that_does_not(now: list[float]) -> None:
    clock = StepClock()
    run(clock, now, 0.007)
    run(clock, now, 0.015, PREFILL)
    early = PREFILL._replace(is_early=True)
    assert clock.forecast(launched(now[0], early)).starts_in_s == pytest.approx(0.015), "not as short as a decode"
    run(clock, now, 0.040, early)
    assert clock.forecast(launched(now[0], early)).starts_in_s == pytest.approx(0.040)


def test_an_idle_device_begins_at_once(now: list[float]) -> None:
    clock = StepClock()
    assert clock.forecast(None).starts_in_s == 0.0 == clock.forecast(launched(100.0)).starts_in_s
