import os
import time

from punica_serve.bench.control_plane.scheduler_process import idle_s


def test_cores_are_idle_for_no_longer_than_there_are_cores_and_a_busy_one_is_not() -> None:
    before_s, start_s = idle_s(), time.monotonic()
    while time.monotonic() < start_s + 0.3:
        pass
    seconds = time.monotonic() - start_s
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    num_cores = os.cpu_count() or 1
    assert 0 <= idle_s() - before_s <= (num_cores - 1) * seconds + 2 * num_cores * tick_s
