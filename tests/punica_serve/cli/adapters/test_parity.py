"""The probe against the demo's own adapters, and against PEFT reading another scaling than the engine does."""

import json
import math
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from punica_serve.adapters.folder import read_adapter
from punica_serve.base_model.config_json import read_model_config
from punica_serve.cli.adapters import parity
from punica_serve.cli.adapters.parity import (
    TOLERANCE,
    EngineAnswer,
    Parity,
    compare,
    compare_base,
    engine_answers,
    parity_table,
    probe,
)
from punica_serve.config.cluster import ClusterConfig, parse_config
from punica_serve.errors import ConfigError
from punica_serve.protocol import AdapterRef

Cli = Callable[..., Any]

ADAPTERS = Path(__file__).parents[4] / "punica_serve" / "punica_serve" / "demo" / "adapters"
DOCUMENT: dict[str, Any] = {"engine": {"model": "demo:model", "model_name": "numbers", "max_context": 64}}


@pytest.fixture
def config() -> ClusterConfig:
    return parse_config(DOCUMENT, source="test", folder=Path.cwd())


def ref_of(name: str, config: ClusterConfig) -> AdapterRef:
    return read_adapter(ADAPTERS / name, read_model_config(config.engine.model))


def with_alpha(folder: Path, name: str, factor: float) -> Path:
    """The adapter of the demo, with its scaling multiplied."""
    altered = shutil.copytree(ADAPTERS / name, folder / "altered")
    document = json.loads((altered / "adapter_config.json").read_text())
    document["lora_alpha"] *= factor
    (altered / "adapter_config.json").write_text(json.dumps(document))
    return altered


@pytest.mark.parametrize("name", ["roman", "french"])
def test_the_demos_adapters_are_applied_as_peft_applies_them(config: ClusterConfig, name: str) -> None:
    rows = probe(config.engine, ref_of(name, config))
    assert [row.num_prompt_tokens for row in rows] == [1, 6, 40]
    for row in rows:
        assert row.num_compared == 8 * 256
        assert row.difference < TOLERANCE / 10 and (row.effect or 0) > 1.0


def test_a_checkpoint_without_an_adapter_is_compared_with_transformers(config: ClusterConfig) -> None:
    answers = engine_answers(config.engine, None)
    rows = compare_base(answers, config.engine.model)
    assert max(row.difference for row in rows) < TOLERANCE / 10 and {row.effect for row in rows} == {None}
    assert len(parity_table(rows).columns) == 3


def test_a_scaling_that_is_altered_by_a_thousandth_is_seen(config: ClusterConfig, tmp_path: Path) -> None:
    answers = engine_answers(config.engine, ref_of("roman", config))
    rows = compare(answers, config.engine.model, with_alpha(tmp_path, "roman", 1.001))
    assert max(row.difference for row in rows) > TOLERANCE


def test_prompts_that_the_context_can_not_hold_are_left_out(config: ClusterConfig) -> None:
    short = config.engine.model_copy(update={"max_context": 16})
    assert [len(answer.prompt_ids) for answer in engine_answers(short, ref_of("roman", config))] == [1, 6]


def test_a_context_that_holds_no_prompt_is_refused(config: ClusterConfig) -> None:
    with pytest.raises(
        ConfigError, match=r"the context is 8 tokens, but comparing needs 9; raise `engine\.max_context`$"
    ):
        probe(config.engine.model_copy(update={"max_context": 8}), ref_of("roman", config))


def test_dummy_weights_are_refused(config: ClusterConfig) -> None:
    with pytest.raises(ConfigError, match="no weights to compare"):
        probe(config.engine.model_copy(update={"load_format": "dummy"}), ref_of("roman", config))


def test_the_command_prints_a_table(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(json.dumps(DOCUMENT))
    outcome = cli("adapters", "verify", str(ADAPTERS / "hex"), "--parity", "--config", str(tmp_path / "cluster.yaml"))
    assert outcome.exit_code == 0, outcome.stderr
    assert "largest difference" in outcome.stdout
    assert "the engine and PEFT agree within 1e-03" in outcome.stdout


def test_the_command_fails_beyond_the_tolerance(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    altered = with_alpha(tmp_path, "hex", 2)

    def compare_with_altered(answers: list[EngineAnswer], model_folder: Path, _: Path) -> list[Parity]:
        return compare(answers, model_folder, altered)

    monkeypatch.setattr(parity, "compare", compare_with_altered)
    (tmp_path / "cluster.yaml").write_text(json.dumps(DOCUMENT))
    outcome = cli("adapters", "verify", str(ADAPTERS / "hex"), "--parity", "--config", str(tmp_path / "cluster.yaml"))
    assert outcome.exit_code == 1
    assert "do not serve this adapter" in outcome.stderr


def test_what_is_no_number_is_beyond_the_tolerance_in_any_row(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare_with_nan(answers: list[EngineAnswer], model_folder: Path, adapter_folder: Path) -> list[Parity]:
        first, second, third = compare(answers, model_folder, adapter_folder)
        return [first, replace(second, difference=math.nan), third]

    monkeypatch.setattr(parity, "compare", compare_with_nan)
    (tmp_path / "cluster.yaml").write_text(json.dumps(DOCUMENT))
    outcome = cli("adapters", "verify", str(ADAPTERS / "hex"), "--parity", "--config", str(tmp_path / "cluster.yaml"))
    assert outcome.exit_code == 1
    assert "differ by nan" in outcome.stderr
    assert "agree" not in outcome.stdout


def test_it_says_what_to_install(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    monkeypatch.delitem(sys.modules, "punica_serve.cli.adapters.parity")
    (tmp_path / "cluster.yaml").write_text(json.dumps(DOCUMENT))
    outcome = cli("adapters", "verify", str(ADAPTERS / "hex"), "--parity", "--config", str(tmp_path / "cluster.yaml"))
    assert outcome.exit_code == 2
    assert "peft is not installed; pip install 'punica-serve[parity]'" in outcome.stderr
