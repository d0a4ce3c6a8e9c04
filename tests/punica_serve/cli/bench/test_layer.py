"""`punica-serve bench layer`: its options become settings."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from punica_serve.bench.layer import run as layer_run
from punica_serve.bench.layer.setting import LayerSettings
from punica_serve.bench.report import Report
from punica_serve.cli.bench import app


def test_options_become_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def run(settings: LayerSettings, device: str, _: object) -> Report:
        seen.append((settings, device))
        return Report("layer", {}, {}, [])

    monkeypatch.setattr(layer_run, "run", run)
    args = ["layer", "--out", str(tmp_path), "--batch=8", "--batch=2", "--layers=3", "--context=64"]
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0, result.output
    ((settings, device),) = seen
    assert [model.name for model in settings.models] == ["llama-2-7b", "llama-2-13b"] and device == "cuda:0"
    assert settings.batch_sizes == (2, 8) and settings.num_layers == 3 and settings.context_lengths == (64,)
    assert (tmp_path / "layer.json").is_file()
