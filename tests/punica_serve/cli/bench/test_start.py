"""`punica-serve bench start`: its options become settings."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from punica_serve.bench.report import Report
from punica_serve.bench.start import start_run
from punica_serve.bench.start.start_run import StartSettings
from punica_serve.cli.bench import app
from punica_serve.config.engine_section import AttentionBackend


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[StartSettings]:
    """The settings of each command."""
    seen: list[StartSettings] = []

    def run(settings: StartSettings, _: object) -> Report:
        seen.append(settings)
        return Report("start", {}, {}, [])

    monkeypatch.setattr(start_run, "run", run)
    return seen


def _start(out: Path, *options: str) -> None:
    result = CliRunner().invoke(app, ["start", "--shape", "llama-2-7b", "--out", str(out), *options])
    assert result.exit_code == 0, result.output


def test_options_become_settings(tmp_path: Path, seen: list[StartSettings]) -> None:
    _start(tmp_path, "--device", "cuda:1", "--tensor-parallel", "4", "--rounds", "2", "--timeout", "60")
    (settings,) = seen
    assert settings.devices == ("cuda:1", "cuda:1,cuda:2,cuda:3,cuda:4")
    assert settings.num_rounds == 2 and settings.timeout_s == 60
    assert settings.config.attention == "auto"


@pytest.mark.parametrize("backend", ["auto", "triton", "flashinfer"])
def test_attention_takes_the_place_of_the_configs(
    tmp_path: Path, seen: list[StartSettings], backend: AttentionBackend
) -> None:
    config = tmp_path / "triton.yaml"
    config.write_text("engine: {model: shape:llama-2-7b, tokenizer: demo:model, load_format: dummy, attention: triton}")
    for options in ([], ["--attention", backend]):
        result = CliRunner().invoke(app, ["start", "--config", str(config), "--out", str(tmp_path / "out"), *options])
        assert result.exit_code == 0, result.output
    assert [settings.config.attention for settings in seen] == ["triton", backend]
