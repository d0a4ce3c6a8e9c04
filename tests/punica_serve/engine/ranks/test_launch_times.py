"""How much later than its leader a rank launches: by the newest steps, which all have launched."""

import time

from punica_serve.engine.ranks.launch_times import LaunchTimes, launch_lags_us


def test_the_last_rank_counts() -> None:
    leader, near, far = (1_000, 50_000), (21_000, 52_000), (11_000, 90_000)
    assert launch_lags_us(leader, (near, far)) == [20.0, 40.0]


def test_steps_are_matched_from_the_newest_on() -> None:
    assert launch_lags_us((1_000, 2_000, 3_000), ((2_500, 3_600),)) == [0.5, 0.6]


def test_a_group_that_has_launched_nothing_has_no_lags() -> None:
    assert launch_lags_us((), ((), ())) == []


def test_the_newest_launches_are_kept_in_order() -> None:
    launches = LaunchTimes()
    began_ns = time.monotonic_ns()
    for _ in range(5000):
        launches.mark()
    newest_ns = launches.newest_ns
    assert len(newest_ns) == 2048
    assert list(newest_ns) == sorted(newest_ns)
    assert began_ns <= newest_ns[0] <= newest_ns[-1] <= time.monotonic_ns()
