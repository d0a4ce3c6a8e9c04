"""`punica-serve profile`: where the profile goes. tests/punica_serve/bench has how it is measured."""

from collections.abc import Callable
from pathlib import Path

import pytest

from punica_serve.bench import profile as measuring
from punica_serve.bench.profile import MeasuredProfile
from punica_serve.performance.lora_fit import LoraSample, fit_lora, read_samples
from punica_serve.performance.profile import load_profile

Cli = Callable[..., tuple[int, str, str]]


_SAMPLES = [
    LoraSample("equal", num_rows, num_rows, 16 * num_rows, 16, 8 * num_rows, 4.0, 4.2 + 0.01 * num_rows)
    for num_rows in (1, 2, 4)
]


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    found = MeasuredProfile(load_profile("h200-7b"), _SAMPLES, fit_lora(_SAMPLES))
    monkeypatch.setattr(measuring, "measure_profile", lambda *_: found)


def test_the_profile_can_be_read_and_its_samples_and_picture_lie_beside_it(cli: Cli, tmp_path: Path) -> None:
    exit_code, stdout, stderr = cli("profile", "--out", str(tmp_path / "folder" / "mine.yaml"))
    assert (exit_code, stderr) == (0, "")
    assert load_profile("mine.yaml", tmp_path / "folder") == load_profile("h200-7b")
    assert read_samples(tmp_path / "folder" / "mine.samples.csv") == _SAMPLES
    assert (tmp_path / "folder" / "mine.png").read_bytes().startswith(b"\x89PNG")
    assert "R² 1.0000" in stdout


def test_a_full_disk_is_told_in_a_line(cli: Cli) -> None:
    exit_code, _, stderr = cli("profile", "--out", "/dev/full")
    assert exit_code == 2
    assert stderr.startswith("punica-serve: `--out`: /dev/full can't be written: No space left on device; ")


def test_a_folder_that_cannot_be_written_is_told_before_it_measures(cli: Cli) -> None:
    exit_code, _, stderr = cli("profile", "--out", "/proc/profile.yaml")
    assert exit_code == 2
    assert stderr.startswith("punica-serve: `--out` /proc is not a folder that can be written to: ")


def test_a_batch_that_no_step_can_count_is_refused(cli: Cli) -> None:
    exit_code, _, stderr = cli("profile", "--device", "cpu", "--largest", str(1 << 80))
    assert exit_code == 2 and "'--largest'" in stderr
