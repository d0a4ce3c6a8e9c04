"""A thread's time on a core, apart from its sleep."""

import time

from punica_serve.bench.thread_clock import ThreadClock


def test_a_lap_counts_work_and_no_sleep() -> None:
    clock = ThreadClock()
    time.sleep(0.05)
    assert clock.lap().core_s < 0.03
    until_s = time.thread_time() + 0.02
    while time.thread_time() < until_s:
        pass
    lap = clock.lap()
    assert 0.02 <= lap.core_s < 0.05 and lap.no_core_s >= 0
