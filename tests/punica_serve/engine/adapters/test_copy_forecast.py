"""How long a step would be held by copies under way."""

import math
import time
from concurrent.futures import Future
from typing import Any, cast

import pytest

from punica_serve.engine.adapters.adapter_peers import GroupCopy
from punica_serve.engine.adapters.copy_forecast import CopyForecast, CopyUnderWay, StepForecast, hold_s
from punica_serve.engine.adapters.layer_arrival import CpuArrival

_MB = 1_000_000


class _Fence:
    has_passed = False

    def query(self) -> bool:
        return self.has_passed


def _copy(num_bytes: int, *fences: _Fence) -> CopyUnderWay:
    arrival = CpuArrival(8, lambda: None)
    return CopyUnderWay(arrival, 8, num_bytes, cast("Any", fences), GroupCopy(Future(), -math.inf))


def _forecast(*copies: CopyUnderWay) -> CopyForecast:
    forecast = CopyForecast()
    forecast.record_rate(_MB, 0.001)  # 1 GB/s
    for copy in copies:
        forecast.add(copy)
    return forecast


def test_a_step_is_held_by_the_layer_that_is_latest() -> None:
    step = StepForecast(starts_in_s=0.001, lasts_s=0.008)
    assert hold_s([0.0] * 8, step) < 0
    assert hold_s([0.003, *[0.0] * 7], step) == pytest.approx(0.002)
    assert hold_s([0.0] * 7 + [0.010], step) == pytest.approx(0.010 - 0.001 - 0.007)
    assert hold_s([], step) == 0


def test_nothing_is_foreseen_before_a_rate_is_known() -> None:
    copy, forecast = _copy(_MB), CopyForecast()
    forecast.add(copy)
    assert forecast.hold_s(copy.arrival, StepForecast(0, 0)) is None


def test_the_slowest_recent_copy_counts() -> None:
    copy = _copy(_MB)
    forecast, step = _forecast(copy), StepForecast(0, 0)
    forecast.record_rate(_MB, 0.002)
    assert forecast.hold_s(copy.arrival, step) == pytest.approx(0.002)
    for _ in range(8):
        forecast.record_rate(_MB, 0.001)
        assert forecast.hold_s(copy.arrival, step) == pytest.approx(0.002)
    forecast.record_rate(_MB, 0.001)
    assert forecast.hold_s(copy.arrival, step) == pytest.approx(0.001), "a hiccup is forgotten"


def test_a_hold_is_foreseen_by_the_slowest_copy_and_a_choice_by_the_usual_one() -> None:
    copy, step = _copy(8 * _MB), StepForecast(0, 0)
    forecast = _forecast(copy)
    for seconds in (0.008, 0.001, 0.001):
        forecast.record_rate(_MB, seconds)
    arrives_in_s = forecast.arrives_in_s(copy.arrival, step)
    assert arrives_in_s is not None and arrives_in_s[-1] == pytest.approx(0.008)
    hold_s = forecast.hold_s(copy.arrival, step)
    assert hold_s is not None and hold_s > 0.05
    for _ in range(5):
        forecast.record_rate(_MB, 0.002)
    arrives_in_s = forecast.arrives_in_s(copy.arrival, step)
    assert arrives_in_s is not None and arrives_in_s[-1] == pytest.approx(0.016), "it follows a link that has slowed"


def test_copies_come_one_after_the_other() -> None:
    first, second = _copy(4 * _MB), _copy(8 * _MB)
    forecast = _forecast(first, second)
    at_once = StepForecast(0, 0)
    assert forecast.hold_s(first.arrival, at_once) == pytest.approx(0.004)
    assert forecast.hold_s(second.arrival, at_once) == pytest.approx(0.012)
    for _ in range(4):
        first.arrival.mark()
    assert forecast.hold_s(first.arrival, at_once) == pytest.approx(0.002)
    assert forecast.hold_s(second.arrival, at_once) == pytest.approx(0.010)


def test_layers_of_a_packed_file_arrive_with_its_last_chunk() -> None:
    arrival, left = CpuArrival(8, lambda: None), 2 * _MB
    group = GroupCopy(Future(), -math.inf)
    copy, step = CopyUnderWay(arrival, 8, 8 * _MB, (), group, lambda: left), StepForecast(0.001, 0.008)
    behind = _copy(8 * _MB)
    forecast = _forecast(copy, behind)
    assert forecast.arrives_in_s(arrival, step) == pytest.approx([0.002] * 8)
    assert forecast.hold_s(arrival, step) == pytest.approx(0.001)  # by its first layer
    arrives_in_s = forecast.arrives_in_s(behind.arrival, step)
    assert arrives_in_s is not None and arrives_in_s[-1] == pytest.approx(0.010)
    for _ in range(8):
        arrival.mark()
    assert forecast.arrives_in_s(arrival, step) == [0.0] * 8


@pytest.mark.parametrize("is_over_before", [True, False])
def test_a_copy_that_has_ended_badly_is_in_nobodys_way(is_over_before: bool) -> None:
    fence, forecast = _Fence(), _forecast()
    first, second = _copy(4 * _MB, fence), _copy(8 * _MB)
    forecast.add(first)
    if is_over_before:
        first.group.done.set_exception(RuntimeError())
    forecast.add(second)
    if not is_over_before:
        first.group.done.set_exception(RuntimeError())
    assert forecast.hold_s(second.arrival, StepForecast(0.001, 0.008)) == pytest.approx(0.008 - 0.001 - 0.007)


def test_a_copy_over_pages_that_a_step_reads_begins_after_it() -> None:
    fence = _Fence()
    copy = _copy(8 * _MB, fence)
    forecast, step = _forecast(copy), StepForecast(starts_in_s=0.005, lasts_s=0.008)
    assert forecast.hold_s(copy.arrival, step) == pytest.approx(0.001)
    fence.has_passed = True
    assert forecast.hold_s(copy.arrival, step) == pytest.approx(0.001 - 0.005)


def test_a_peer_may_be_late_by_all_of_its_copy_until_it_says_that_it_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    group, arrival, step = GroupCopy(Future()), CpuArrival(8, lambda: None), StepForecast(0, 0)
    copy = CopyUnderWay(arrival, 8, 8 * _MB, (), group)
    forecast = _forecast(copy)
    for _ in range(8):
        arrival.mark()  # this rank has all of it
    assert forecast.hold_s(arrival, step) == pytest.approx(0.008)
    group.mark_queued()
    begun_s = group.queued_s
    assert begun_s is not None
    monkeypatch.setattr(time, "perf_counter", lambda: begun_s + 0.003)
    assert forecast.hold_s(arrival, step) == pytest.approx(0.005)
    monkeypatch.setattr(time, "perf_counter", lambda: begun_s + 0.009)
    assert forecast.hold_s(arrival, step) == 0
