from collections.abc import Callable
from pathlib import Path
from typing import Any

Cli = Callable[..., Any]

CONFIG = "engine: {model: 'demo:model', model_name: numbers}\n"
ROMAN = Path(__file__).parents[4] / "punica_serve" / "punica_serve" / "demo" / "adapters" / "roman"


def test_a_good_folder(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(CONFIG)
    outcome = cli("adapters", "verify", str(ROMAN), "--config", str(tmp_path / "cluster.yaml"))
    assert outcome.exit_code == 0
    assert "can be served on numbers\nranks: q_proj 8, v_proj 8\ndigest: " in outcome.stdout


def test_a_bad_folder_is_refused_with_the_reason(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(CONFIG)
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes((ROMAN / "adapter_model.safetensors").read_bytes())
    outcome = cli("adapters", "verify", str(tmp_path), "--config", str(tmp_path / "cluster.yaml"))
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert "adapter_config.json" in outcome.stderr


def test_one_that_the_lora_pool_could_not_hold_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("engine: {model: 'demo:model', num_lora_pages: 7}\n")
    outcome = cli("adapters", "verify", str(ROMAN.parent / "binary"), "--config", str(tmp_path / "cluster.yaml"))
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert "takes 8 pages of qkv" in outcome.stderr
