import os
import time

from punica_serve.bench.control_plane.scheduler_process import idle_s


def test_cores_are_idle_for_no_longer_than_there_are_cores_and_a_busy_one_is_not() -> None:
    before_s, start_s, start_cpu_s = idle_s(), time.monotonic(), time.process_time()
    while time.process_time() < start_cpu_s + 0.3:  # however long a busy machine takes for that
        pass
    core_s = (time.monotonic() - start_s) * (num_cores := os.cpu_count() or 1)
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    assert 0 <= idle_s() - before_s <= core_s - 0.3 + 2 * num_cores * tick_s
