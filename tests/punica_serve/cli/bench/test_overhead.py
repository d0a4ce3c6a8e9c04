"""`punica-serve bench overhead`: its options become settings."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from punica_serve.bench.overhead import run as overhead_run
from punica_serve.bench.overhead.sweep import OverheadSettings
from punica_serve.bench.report import Report
from punica_serve.bench.subject import Subject
from punica_serve.cli.bench import app


def test_options_become_settings_and_a_failure_an_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def run(subject: Subject, settings: OverheadSettings, out: Path, _: object) -> Report:
        seen.append((subject, settings, out))
        return Report("overhead", {}, {}, [], failures=["the trace holds no kernel named sgmv_shrink"])

    monkeypatch.setattr(overhead_run, "run", run)
    args = [
        "overhead",
        "--shape=llama-2-7b",
        "--device=cpu",
        "--out",
        str(tmp_path),
        "--batch=4",
        "--ranks=64",
        "--steps=5",
    ]
    result = CliRunner().invoke(app, args)
    # Failures are printed, and the other results are written.
    assert result.exit_code == 1 and "FAILED the trace holds no kernel named sgmv_shrink" in result.output
    assert (tmp_path / "overhead.json").is_file()
    ((subject, settings, out),) = seen
    assert subject.model.hidden_size == 4096 and subject.device.type == "cpu" and out == tmp_path
    assert settings == OverheadSettings(batch_sizes=(4,), ranks=(64,), num_steps=5)
