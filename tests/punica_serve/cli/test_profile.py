"""`punica-serve profile`: where the profile goes. tests/punica_serve/bench has how it is measured."""

from collections.abc import Callable
from pathlib import Path

import pytest

from punica_serve.bench import profile as measuring
from punica_serve.performance.profile import load_profile

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = load_profile("h200-7b")
    monkeypatch.setattr(measuring, "measure_profile", lambda *_: profile)


def test_the_profile_is_one_that_can_be_read(cli: Cli, tmp_path: Path) -> None:
    exit_code, _, stderr = cli("profile", "--out", str(tmp_path / "folder" / "mine.yaml"))
    assert (exit_code, stderr) == (0, "")
    assert load_profile("mine.yaml", tmp_path / "folder") == load_profile("h200-7b")


def test_a_full_disk_is_told_in_a_line(cli: Cli) -> None:
    exit_code, _, stderr = cli("profile", "--out", "/dev/full")
    assert exit_code == 2
    assert stderr.startswith("punica-serve: `--out`: /dev/full can't be written: No space left on device; ")


def test_a_folder_that_cannot_be_written_is_told_before_it_measures(cli: Cli) -> None:
    exit_code, _, stderr = cli("profile", "--out", "/proc/profile.yaml")
    assert exit_code == 2
    assert stderr.startswith("punica-serve: `--out` /proc is not a folder that can be written to: ")
