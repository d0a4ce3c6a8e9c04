"""Cores that a process may use, in containers too."""

import os
from pathlib import Path

import pytest

from punica_serve.process.usable_cores import usable_cores


@pytest.fixture(autouse=True)
def _sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)


def _write(folder: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    return folder


@pytest.mark.parametrize(
    ("content", "cores"),
    [("max 100000\n", 16), ("400000 100000\n", 4), ("50000 100000\n", 1), ("9900000 100000\n", 16)],
)
def test_a_quota_limits_the_cores(tmp_path: Path, content: str, cores: int) -> None:
    assert usable_cores(_write(tmp_path, {"cpu.max": content})) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1\n", 16), ("250000\n", 2)])
def test_older_cgroups_have_it_elsewhere(tmp_path: Path, quota: str, cores: int) -> None:
    files = {"cpu/cpu.cfs_quota_us": quota, "cpu/cpu.cfs_period_us": "100000\n"}
    assert usable_cores(_write(tmp_path, files)) == cores


def test_without_a_container_all_bound_cores_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert usable_cores(tmp_path / "missing") == 16
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert usable_cores(tmp_path) == 3
