"""How much later than its leader a rank launches: by the newest steps, which all have launched."""

import time

import pytest

from punica_serve.engine.ranks.launch_times import PHASES, LaunchTimes, PhaseTimes, launch_lags_us


def _launches(*launched_ns: int) -> tuple[PhaseTimes, ...]:
    """Launches whose phases follow each other at once, but for the last one."""
    return tuple((*range(5), ended_ns) for ended_ns in launched_ns)


def test_the_last_rank_counts() -> None:
    leader, near, far = _launches(1_000, 50_000), _launches(21_000, 52_000), _launches(11_000, 90_000)
    lags_us = launch_lags_us(leader, (near, far))
    assert lags_us["launch"] == [20.0, 40.0]
    assert lags_us["frame"] == lags_us["forward"] == [0.0, 0.0]


def test_each_phase_has_the_lag_at_its_end() -> None:
    leader = ((0, 0, 10_000, 30_000, 90_000, 95_000),)
    rank = ((2_000, 25_000, 35_000, 56_000, 117_000, 124_000),)
    lags_us = launch_lags_us(leader, (rank,))
    assert list(lags_us) == list(PHASES)
    assert [lag for (lag,) in lags_us.values()] == [2.0, 25.0, 25.0, 26.0, 27.0, 29.0]


def test_steps_are_matched_from_the_newest_on() -> None:
    assert launch_lags_us(_launches(1_000, 2_000, 3_000), (_launches(2_500, 3_600),))["launch"] == [0.5, 0.6]


def test_a_group_that_has_launched_nothing_has_no_lags() -> None:
    assert not any(launch_lags_us((), ((), ())).values())


def test_the_newest_launches_are_kept_in_order() -> None:
    launches = LaunchTimes()
    began_ns = time.monotonic_ns()
    for _ in range(5000):
        launches.add(*[time.monotonic_ns()] * 5)
    newest_ns = launches.newest_ns
    assert len(newest_ns) == 2048
    flat = [passed_ns for phases_ns in newest_ns for passed_ns in phases_ns]
    assert flat == sorted(flat)
    assert began_ns <= flat[0] <= flat[-1] <= time.monotonic_ns()


def test_others_are_as_early_as_they_launched_before_the_end() -> None:
    launches = LaunchTimes()
    launches.begin()
    own_ns = launches.add(0, 0)
    others_ns = {1: own_ns + 50_000, 2: own_ns, 3: own_ns + 400_000}
    assert launches.early_s(0.00025, others_ns) == pytest.approx({1: 0.0002, 2: 0.00025, 3: 0.0})


def test_a_rank_that_has_not_launched_the_newest_step_is_late() -> None:
    launches = LaunchTimes()
    older_ns = launches.add()
    launches.begin()
    own_ns = launches.add()
    assert launches.early_s(0.001, {1: older_ns - 1, 2: 0, 3: own_ns}) == {1: 0.0, 2: 0.0, 3: 0.001}
    assert launches.early_s(0.0, {3: own_ns}) == {3: 0.0}, "the leader was late itself"
