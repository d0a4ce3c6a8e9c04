import subprocess
import sys
import time

import pytest

from punica_serve.process.start_clock import StartClock, StartTimes, process_age_s


class _Time:
    """Stands still unless it is told to go on."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def now() -> _Time:
    return _Time()


def test_phases_add_up_and_the_rest_is_told(now: _Time) -> None:
    clock = StartClock(age_s=4.0, now_s=now)
    clock.spent("imports", clock.total_s)
    for seconds in (2.0, 1.0):
        with clock.phase("weights"):
            now.now_s += seconds
    now.now_s += 0.5
    assert f"{StartTimes.of(clock)}" == "7.5 s (imports 4.0, weights 3.0, rest 0.5)"


def test_short_phases_are_part_of_the_rest(now: _Time) -> None:
    clock = StartClock(now_s=now)
    with clock.phase("pools"):
        now.now_s += 0.04
    now.now_s += 0.06
    assert f"{StartTimes.of(clock)}" == "0.1 s (rest 0.1)"
    assert f"{StartTimes(0.01, {}, ())}" == "0.0 s"


def test_a_phase_without_its_waits_for_other_ranks(now: _Time) -> None:
    def agree(name: str, value: int) -> int:
        now.now_s += 5.0
        return value

    clock = StartClock(now_s=now)
    with clock.phase("pools"):
        now.now_s += 1.0
        assert clock.as_wait(agree)("KvCache", 7) == 7
    assert clock.phases == {"pools": pytest.approx(1.0)}


def test_the_slowest_rank_counts_and_is_named(now: _Time) -> None:
    clock = StartClock(now_s=now)
    with clock.phase("weights"):
        now.now_s += 3.0
    with clock.phase("pools"):
        now.now_s += 0.5
    times = StartTimes.of(clock, [{"weights": 2.0, "pools": 0.5}, {"weights": 3.5, "pools": 0.2}])
    assert f"{times}" == "3.5 s (weights 3.5 (rank 2), pools 0.5)"


def test_a_phase_that_ranks_end_together_is_that_of_the_last_to_come(now: _Time) -> None:
    clock = StartClock(now_s=now)
    with clock.phase("graphs", together=True):
        now.now_s += 9.0
    assert StartTimes.of(clock, [{"graphs": 6.0}]).phases == {"graphs": (6.0, 1)}


def test_a_long_start_tells_how_far_it_is_every_ten_seconds(now: _Time) -> None:
    said: list[str] = []
    clock = StartClock(age_s=2.0, say=said.append, now_s=now)
    with clock.phase("weights"):
        for layer in range(8):
            clock.at(layer, 8)
            now.now_s += 3.0
    with clock.phase("graphs"):
        assert said == ["starting for 14 s: weights, 4 of 8", "starting for 26 s: graphs"]


def test_a_short_start_says_nothing(now: _Time) -> None:
    said: list[str] = []
    clock = StartClock(say=said.append, now_s=now)
    with clock.phase("weights"):
        now.now_s += 9.9
        clock.at(1, 2)
    assert not said


def test_a_failed_phase_is_counted(now: _Time) -> None:
    clock = StartClock(now_s=now)
    with pytest.raises(ZeroDivisionError), clock.phase("weights"):
        now.now_s += 1.0
        _ = 1 // 0
    assert clock.phases == {"weights": pytest.approx(1.0)}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_a_process_knows_its_age() -> None:
    code = (
        "import time; time.sleep(0.5); from punica_serve.process.start_clock import process_age_s as age; print(age())"
    )
    started_s = time.monotonic()
    age_s = float(subprocess.check_output([sys.executable, "-c", code]))
    assert 0.45 < age_s < time.monotonic() - started_s + 0.1
    assert process_age_s() > 0


def test_phases_are_told_as_they_begin(now: _Time) -> None:
    clock = StartClock(now_s=now)
    told: list[tuple[int, str]] = []
    clock.on_phase = lambda rank, name: told.append((rank, name))
    with clock.phase("weights"):
        clock.other_began(1, "joining")
        assert told == [(0, "weights"), (1, "joining")]
