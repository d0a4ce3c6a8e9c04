"""The host memory that a process may take, by the files of Linux."""

from pathlib import Path

import pytest

from punica_serve.engine.memory.available_memory import available_bytes


def _host(root: Path, *, limit: str | None) -> Path:
    (root / "proc").mkdir()
    (root / "proc/meminfo").write_text("MemTotal:  64 kB\nMemFree:  1 kB\nMemAvailable:     48 kB\n")
    if limit is not None:
        (root / "sys/fs/cgroup").mkdir(parents=True)
        (root / "sys/fs/cgroup/memory.max").write_text(f"{limit}\n")
        (root / "sys/fs/cgroup/memory.stat").write_text("anon 1000\nfile 900000\ninactive_anon 7\nshmem 24\n")
    return root


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(None, 48 << 10), ("max", 48 << 10), ("11024", 10_000), ("100", 0), (f"{1 << 40}", 48 << 10)],
)
def test_the_tighter_of_host_and_container_counts_without_cached_files(
    tmp_path: Path, limit: str | None, expected: int
) -> None:
    assert available_bytes(_host(tmp_path, limit=limit)) == expected


@pytest.mark.parametrize(("limit", "expected"), [(11024, 10_000), ((1 << 63) - 4096, 48 << 10)])
def test_a_container_of_the_older_cgroups_has_its_limit_too(tmp_path: Path, limit: int, expected: int) -> None:
    folder = _host(tmp_path, limit=None) / "sys/fs/cgroup/memory"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.stat").write_text("cache 900000\nrss 1\ntotal_rss 1000\ntotal_shmem 24\n")
    assert available_bytes(tmp_path) == expected


def test_somewhere_else_half_of_the_memory_counts(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) > 1 << 20


def test_a_kernel_that_does_not_tell_what_is_available_is_not_taken_for_full(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:  64 kB\nMemFree:  1 kB\n")
    assert available_bytes(tmp_path) > 1 << 20
