"""Which engine the benchmarks of the engine run, and one of them from end to end."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from punica_serve.cli.bench import app
from punica_serve.cli.bench.engine_options import subject_of
from punica_serve.errors import ConfigError


@pytest.fixture
def config_file(tiny_llama: Path, tmp_path: Path) -> Path:
    engine = {"model": str(tiny_llama), "dtype": "float32", "num_kv_pages": 64, "cpu_threads": 1}
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump({"engine": engine, "runner": {"devices": ["cpu"]}}))
    return path


def test_a_config_brings_its_model_and_device(config_file: Path) -> None:
    subject = subject_of(config_file, None, None)
    assert subject.device.type == "cpu" and subject.model.hidden_size == 32
    assert subject.config.load_format == "safetensors"


def test_a_shape_has_random_weights() -> None:
    subject = subject_of(None, "llama-2-7b", "cpu")
    assert subject.device.type == "cpu" and subject.model.hidden_size == 4096
    assert subject.config.load_format == "dummy"
    assert subject.config.dtype_of(subject.model) == "bfloat16"


def test_one_model_only(config_file: Path) -> None:
    with pytest.raises(ConfigError, match="both name a model"):
        subject_of(config_file, "1b", None)


def test_textgen_from_end_to_end(config_file: Path, tmp_path: Path) -> None:
    options = ["--requests", "4", "--rounds", "1", "--rank", "4", "--length", "3", "4", "--rows", "distinct,backbone"]
    result = CliRunner().invoke(
        app, ["textgen", "--config", str(config_file), *options, "--out", str(tmp_path / "out")]
    )
    assert result.exit_code == 0, result.output
    document = json.loads((tmp_path / "out" / "textgen.json").read_text())
    assert [row["row"] for row in document["tables"]["speeds"]] == ["distinct", "backbone"]
    assert document["settings"]["resident"] is True, "on a CPU, loading would be measured as computing"


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("batching", ["--largest", "2"]),
        ("coldstart", ["--arrivals", "2", "--gap-ms", "20", "--rounds", "1", "--batch-size", "3", "--from", "files"]),
    ],
)
def test_other_benchmarks_from_end_to_end(command: str, options: list[str], config_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    common = ["--config", str(config_file), "--rank", "4", "--out", str(out)]
    result = CliRunner().invoke(app, [command, *options, *common])
    assert result.exit_code == 0, result.output
    document = json.loads((out / f"{command}.json").read_text())
    assert all(document["tables"].values()) and (out / f"{command}.png").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--length", "-5", "64"], "--length"),
        (["--length", "300000", "64"], "--length"),
        (["--out", "{file}"], "--out"),
        (["--out", "/proc/x"], "--out"),
        (["--folder", "{file}"], "--folder"),
        (["--folder", "{file}/below"], "--folder"),
    ],
)
def test_what_can_not_be_is_said_before_anything_is_measured(config_file: Path, options: list[str], named: str) -> None:
    given = [option.format(file=config_file) for option in options]
    result = CliRunner().invoke(app, ["textgen", "--config", str(config_file), *given])
    assert isinstance(result.exception, ConfigError) and named in result.exception.message
