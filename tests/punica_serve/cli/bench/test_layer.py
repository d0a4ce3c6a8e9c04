"""`punica-serve bench layer`: its options become settings."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from punica_serve.base_model.lora_layout import USUAL_LIMITS, LoraLimits
from punica_serve.bench.layer import run as layer_run
from punica_serve.bench.layer.layer_sizes import LayerSection
from punica_serve.bench.layer.setting import LayerSettings
from punica_serve.bench.report import Report
from punica_serve.cli.bench import app
from punica_serve.errors import ConfigError

Seen = tuple[LayerSettings, tuple[LayerSection, ...], str]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Seen]:
    """The settings, the sections and the device of each command."""
    seen: list[Seen] = []

    def run(settings: LayerSettings, sections: tuple[LayerSection, ...], device: str, _: object) -> Report:
        seen.append((settings, sections, device))
        return Report("layer", {}, {}, [])

    monkeypatch.setattr(layer_run, "run", run)
    return seen


def test_options_become_settings(tmp_path: Path, seen: list[Seen]) -> None:
    args = ["layer", "--out", str(tmp_path), "--batch=8", "--batch=2", "--layers=3", "--context=64", "--prompt=96"]
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0, result.output
    ((settings, sections, device),) = seen
    assert sections == tuple(LayerSection) and settings.prompt_lengths == (96,)
    assert [model.name for model in settings.models] == ["llama-2-7b", "llama-2-13b"] and device == "cuda:0"
    assert settings.batch_sizes == settings.projection_batch_sizes == settings.part_batch_sizes == (2, 8)
    assert settings.limits == USUAL_LIMITS
    assert settings.num_layers == 3 and settings.context_lengths == (64,)
    assert (tmp_path / "layer.json").is_file()


def test_tables_have_room_for_the_highest_rank(tmp_path: Path, seen: list[Seen]) -> None:
    args = ["layer", "--out", str(tmp_path), "--rank=16"]
    assert CliRunner().invoke(app, [*args, "--max-lora-rank=16"]).exit_code == 0
    assert seen[0][0].limits == LoraLimits(16)
    with pytest.raises(ConfigError, match=r"^`--rank` is 16, and `--max-lora-rank` is 8: lower one or raise the other"):
        CliRunner().invoke(app, [*args, "--max-lora-rank=8"], catch_exceptions=False)


def test_a_cpu_measures_sizes_that_it_ends(tmp_path: Path, seen: list[Seen]) -> None:
    assert CliRunner().invoke(app, ["layer", "--device=cpu", "--out", str(tmp_path)]).exit_code == 0
    ((settings, *_),) = seen
    settings.check_cpu()


def test_sections_are_chosen(tmp_path: Path, seen: list[Seen]) -> None:
    args = ["layer", "--out", str(tmp_path), "--only=prefills"]
    assert CliRunner().invoke(app, args).exit_code == 0
    assert seen[0][1] == (LayerSection.PREFILLS,)


@pytest.mark.parametrize(
    ("option", "value"), [("--batch", 64), ("--layers", 8), ("--context", 2048), ("--prompt", 512), ("--replays", 7)]
)
def test_sizes_that_take_a_cpu_hours_are_refused(tmp_path: Path, option: str, value: int) -> None:
    args = ["layer", "--device=cpu", "--out", str(tmp_path), f"{option}={value}"]
    with pytest.raises(ConfigError, match=rf"^`{option}` is {value}; on a CPU, .* it may be at most \d+: lower it"):
        CliRunner().invoke(app, args, catch_exceptions=False)
