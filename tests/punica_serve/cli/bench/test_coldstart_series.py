"""`punica-serve bench coldstart-series`, from its options to its files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml


@pytest.fixture
def config_file(tiny_llama: Path, tmp_path: Path) -> Path:
    engine = {
        "model": str(tiny_llama),
        "dtype": "float32",
        "num_kv_pages": 256,
        "cpu_threads": 1,
        "max_context": 48,
    }
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump({"engine": engine, "runner": {"devices": ["cpu"]}}))
    return path


def test_from_end_to_end(cli: Callable[..., Any], config_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["--series", "rank32,serverless128", "--rows", "cached,on_demand,wait", "--seconds", "0.5"]
    slowed = ["--projections", "all", "--link-gbps", "0.1", "--batch-size", "8", "--out", str(out)]
    outcome = cli("bench", "coldstart-series", "--config", str(config_file), *options, *slowed)
    assert outcome.exit_code == 0, outcome.stderr
    document = json.loads((out / "coldstart-series.json").read_text())
    names = {(row["series"], row["row"]) for row in document["tables"]["series"]}
    assert names == {(s, r) for s in ("rank32", "serverless128") for r in ("cached", "on_demand", "wait")}
    assert document["settings"]["projections"] == "all" and document["settings"]["link_gb_per_s"] == 0.1
    assert {path.name for path in out.glob("*.png")} == {
        f"coldstart-series-{name}.png" for name in ("rank32", "serverless128", "loads")
    }


@pytest.mark.slow
def test_a_group_is_compared_with_loads_on_demand(cli: Callable[..., Any], config_file: Path, tmp_path: Path) -> None:
    """Two CPUs, whose second rank is a process of its own."""
    out = tmp_path / "out"
    options = ["--series", "rank64-slow", "--rows", "cached,on_demand,layerwise", "--seconds", "0.5"]
    group = ["--tensor-parallel", "2", "--out", str(out)]
    outcome = cli("bench", "coldstart-series", "--config", str(config_file), *options, *group)
    assert outcome.exit_code == 0, outcome.stderr
    document = json.loads((out / "coldstart-series.json").read_text())
    assert {row["row"] for row in document["tables"]["series"]} == {"cached", "on_demand", "layerwise"}
    (compared,) = document["tables"]["group"]
    latency_ms = {row["row"]: row["latency_ms_mean"] for row in document["tables"]["series"]}
    assert compared["row"] == "layerwise"
    below = 100 * (1 - latency_ms["layerwise"] / latency_ms["on_demand"])
    assert compared["latency_below"] == pytest.approx(below)
    assert document["settings"]["model"].endswith("group of 2")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--series", "rank65"], "series 'rank65' does not exist; there are rank64, "),
        (["--rows", "warm"], "row 'warm' does not exist; there are cached, "),
        (["--series", "serverless128", "--trace", "/no/such.csv"], "No such file or directory"),
        (["--adapters", "8", "--batch-size", "9"], "`--adapters` is 8, but a step has up to 9 requests; raise it"),
        (["--trace", "/no/such.csv"], "`--trace` is for the serverless series; name one with `--series`"),
    ],
)
def test_what_can_not_be_is_said_in_one_line(
    cli: Callable[..., Any], config_file: Path, options: list[str], message: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    outcome = cli("bench", "coldstart-series", "--config", str(config_file), *options, "--out", str(out))
    assert outcome.exit_code == 2 and message in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1 and not out.exists()
