"""The figures that a host tells of its memory, disk and processors."""

import os
from pathlib import Path

import pytest

from punica_serve.bench.host_counters import HostCounters


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "self").mkdir()
    (tmp_path / "meminfo").write_text("MemTotal:   1000 kB\nDirty:   10 kB\nWriteback:   5 kB\nHugePages_Total:   0\n")
    (tmp_path / "vmstat").write_text("pgscan_direct 7\npgscan_kswapd 3\n")
    (tmp_path / "self/io").write_text("rchar: 4096\nread_bytes: 8192\n")
    (tmp_path / "stat").write_text("cpu  1 2 3 4 5 6 7 250 0 0\ncpu0 1 2 3 4 5 6 7 250 0 0\n")
    return tmp_path


def test_counters_are_those_of_the_system(proc: Path) -> None:
    counters = HostCounters.now(proc)
    assert (counters.memory_bytes, counters.dirty_bytes) == (1_024_000, 15 * 1024)
    assert (counters.direct_reclaims, counters.disk_bytes, counters.stolen_s) == (7, 8192, 2.5)


def test_a_change_is_told_of_each_counter(proc: Path) -> None:
    before = HostCounters.now(proc)
    (proc / "self/io").write_text("read_bytes: 12288\n")
    change = HostCounters.now(proc).since(before)
    assert change.disk_bytes == 4096 and change.memory_bytes == 0


def test_a_system_that_is_silent_counts_nothing(tmp_path: Path) -> None:
    assert HostCounters.now(tmp_path / os.devnull.strip("/")).memory_bytes == 0
