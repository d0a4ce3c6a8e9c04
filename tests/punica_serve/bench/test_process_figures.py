import os
import subprocess
import sys
import time

import pytest

from punica_serve.bench.process_figures import ProcessFigures

MIB = 1 << 20


def test_this_process() -> None:
    before_s, own_s = ProcessFigures(os.getpid()).cpu_s, time.process_time()
    sum(range(100_000))
    assert ProcessFigures(os.getpid()).cpu_s - before_s == pytest.approx(time.process_time() - own_s, abs=0.01)


def test_another_process_that_works_for_less_than_a_tick() -> None:
    program = f"input(); kept = b'x' * {32 * MIB}; print('done', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        figures = ProcessFigures(process.pid)
        while (before_s := figures.cpu_s) == 0.0:
            pass
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        assert 0.0 < figures.cpu_s - before_s < 5.0
        assert figures.resident_bytes >= 32 * MIB
        process.kill()
