"""Code shared by the benchmark commands."""

from pathlib import Path

import pytest
from rich.progress import Progress

from punica_serve.bench.report import Report
from punica_serve.cli.bench.common import measure
from punica_serve.errors import ConfigError


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    def benchmark(_: Progress) -> Report:
        (tmp_path / "kernels.json").mkdir()
        return Report("kernels", {}, {}, [])

    with pytest.raises(ConfigError, match=r"^`--out`: .*/kernels\.json can't be written: Is a directory; "):
        measure(benchmark, tmp_path)
