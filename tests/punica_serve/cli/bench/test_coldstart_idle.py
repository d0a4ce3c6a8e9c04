"""`punica-serve bench coldstart-idle`, from its options to its file."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from punica_serve.bench.coldstart_idle import idle_run


@pytest.fixture
def config_file(tiny_llama: Path, tmp_path: Path) -> Path:
    engine = {"model": str(tiny_llama), "dtype": "float32", "num_kv_pages": 128, "cpu_threads": 1}
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump({"engine": engine, "runner": {"devices": ["cpu"]}}))
    return path


def test_each_mode_has_a_row_for_each_rank_and_prompt(
    cli: Callable[..., Any], config_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_run, "IdleSettings", partial(idle_run.IdleSettings, gap_s=0.02))
    out = tmp_path / "out"
    options = ["--modes", "wait,layerwise", "--rank", "4", "--rank", "8", "--prompt-tokens", "5", "--arrivals", "2"]
    outcome = cli("bench", "coldstart-idle", "--config", str(config_file), *options, "--out", str(out))
    assert outcome.exit_code == 0, outcome.stderr
    tables = json.loads((out / "coldstart-idle.json").read_text())["tables"]
    rows = tables["first_tokens"]
    assert [(row["mode"], row["rank"]) for row in rows] == [
        (mode, rank) for mode in ("wait", "layerwise") for rank in (4, 8)
    ]
    for row in rows:
        assert row["warm_ms"] > 0
        assert all(isinstance(row[f"{source}_added_ms"], float) for source in ("host", "packed", "files"))
    assert {row["place"]: row["first_token_ms"] for row in tables["peer"]}["files"] == 100.7


@pytest.mark.parametrize(
    ("option", "message"),
    [("--modes", "mode 'soon' does not exist; there are wait, layerwise"), ("--from", "place 'soon' does not exist")],
)
def test_an_unknown_name_is_refused(cli: Callable[..., Any], config_file: Path, option: str, message: str) -> None:
    outcome = cli("bench", "coldstart-idle", "--config", str(config_file), option, "soon")
    assert outcome.exit_code != 0 and message in outcome.stderr
