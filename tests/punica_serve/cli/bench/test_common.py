"""Code shared by the benchmark commands."""

import time
from pathlib import Path

import pytest
from rich.progress import Progress

from punica_serve.bench.report import Report
from punica_serve.cli.bench import common
from punica_serve.cli.bench.common import measure
from punica_serve.errors import ConfigError


def test_lines_tell_how_far_a_benchmark_is_where_no_terminal_shows_its_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(common, "_TOLD_EVERY_S", 0.01)

    def benchmark(progress: Progress) -> Report:
        progress.advance(progress.add_task("linear", total=4))
        deadline_s = time.monotonic() + 10
        while "linear: 1 of 4, 0 s\n" not in capsys.readouterr().err and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert time.monotonic() < deadline_s
        return Report("kernels", {}, {}, [])

    measure(benchmark, tmp_path)
    capsys.readouterr()
    time.sleep(0.05)
    assert not capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    def benchmark(_: Progress) -> Report:
        (tmp_path / "kernels.json").mkdir()
        return Report("kernels", {}, {}, [])

    with pytest.raises(ConfigError, match=r"^`--out`: .*/kernels\.json can't be written: Is a directory; "):
        measure(benchmark, tmp_path)
