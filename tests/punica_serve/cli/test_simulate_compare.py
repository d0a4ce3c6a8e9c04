"""`punica-serve simulate` with `simulation.compare` and `--slo-scales`, on a small cluster."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from punica_serve.cli.commands import app
from punica_serve.cli.simulate_compare import scales_of
from punica_serve.errors import ConfigError

CONFIG = """
engine: {model: "shape:llama-2-7b", num_kv_pages: 500, num_lora_pages: 256}
dummy_adapters: {count: 100, rank: [8, 128], modules: qkv}
runner: {devices: [simulated, simulated, simulated, simulated]}
simulation:
  profile: a10-7b-padded
  interval_s: 1.0
  slo: {scale: 1.5, first_token_s: 60.0}
  compare: [most_idle, punica]
  arrivals: {rate: [[0, 10], [3, 10]], population: maf_like, lengths: alpaca}
"""


@pytest.fixture(autouse=True)
def _one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small simulations take less time than the processes of several cores take to start."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "few.yaml"
    path.write_text(CONFIG)
    return path


def _run(config: Path, *options: str) -> Result:
    arguments = ["simulate", str(config), "--out", str(config.parent / "out"), *options]
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def _summaries(config: Path, name: str) -> Any:
    return json.loads((config.parent / "out" / name).read_text())


def test_policies_are_compared_in_a_table_files_and_a_picture(config: Path) -> None:
    result = _run(config)
    assert result.exit_code == 0, result.output
    assert "most_idle is faster by" in result.output and "GPU time / that of most_idle" in result.output
    assert "FAIL" not in result.output, "the claims are those of another paper's figure"
    names = sorted(path.name for path in (config.parent / "out").iterdir())
    assert names == ["few-cdfs.csv", "few.json", "few.png"]
    summaries = _summaries(config, "few.json")
    assert list(summaries) == ["most_idle", "punica"]
    spread, packed = summaries.values()
    assert spread["num_requests"] == packed["num_requests"] > 10
    assert spread["gpu_time_s"] > packed["gpu_time_s"] > 0
    assert spread["num_unused_gpus"] == 0 < packed["num_unused_gpus"]
    assert spread["mean_batch_size"] < packed["mean_batch_size"]
    assert spread["attained"] == {"first_token": 1.0, "time_per_token": 1.0, "both": 1.0}
    with (config.parent / "out" / "few-cdfs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["share"] == "0.000" and rows[-1]["share"] == "1.000"
    for column in ("most_idle_time_per_token_s", "punica_first_token_s"):
        times_s = [float(row[column]) for row in rows]
        assert times_s == sorted(times_s) and times_s[0] > 0.03


OWN = """
from punica_scheduler.core.placement import FirstFitPlacement
class Mine(FirstFitPlacement):
    def __init__(self, costs):
        assert costs is not None
"""


def test_a_policy_of_ones_own_is_compared_by_the_name_of_its_class(config: Path) -> None:
    (config.parent / "mine.py").write_text(OWN)
    goals = "  goals: {a10-7b-padded: {'mine.py:Mine': {kept: 0.1, faster_than: {'mine.py:Mine': 0.0}}}}\n"
    config.write_text(CONFIG + goals)
    result = _run(config, "--compare", f"{config.parent}/mine.py:Mine,first_fit", "--slo-scales", "2")
    assert result.exit_code == 0, result.output
    mine, first_fit = _summaries(config, "few.json").items()
    assert mine[0] == "Mine" and mine[1]["gpu_time_s"] == pytest.approx(first_fit[1]["gpu_time_s"], rel=0.1)
    assert "pass  Mine keeps at least 10%" in result.output and "pass  Mine is faster than Mine" in result.output
    assert "Mine, 2 x unloaded" in _summaries(config, "few-slo-scales.json")


def test_tighter_promises_are_kept_less(config: Path) -> None:
    result = _run(config, "--slo-scales", "2,1.01", "--compare", "punica")
    assert result.exit_code == 0, result.output
    assert (config.parent / "out" / "few-slo-scales.png").exists()
    tight, loose = _summaries(config, "few-slo-scales.json").values()
    assert tight["attained"]["both"] < 0.5 and loose["attained"]["both"] == 1.0
    assert tight["gpu_time_s"] == loose["gpu_time_s"], "this policy does not look at promises"
    assert list(_summaries(config, "few.json")) == ["punica"]


def test_a_policy_that_looks_at_promises_runs_once_for_each_scale(config: Path) -> None:
    config.write_text(CONFIG.replace("runner:", "scheduler: {queue: deadline}\nrunner:"))
    result = _run(config, "--slo-scales", "1.01,2", "--compare", "most_idle")
    assert result.exit_code == 0, result.output
    assert list(_summaries(config, "few-slo-scales.json")) == ["most_idle, 1.01 x unloaded", "most_idle, 2 x unloaded"]


def test_requests_that_fail_are_told_after_the_files(config: Path) -> None:
    config.write_text(CONFIG.replace("num_kv_pages: 500", "num_kv_pages: 1").replace("scale: 1.5, ", ""))
    result = _run(config)
    assert result.exit_code == 1
    assert "punica: " in result.output and "failed: the prompt" in result.output
    assert (config.parent / "out" / "few.png").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--compare", "punica,best"], "`--compare`: 'best' is not a placement policy; there are punica, most_idle"),
        (["--compare", "a.py:Mine,b.py:Mine"], "two policies are called Mine; rename one"),
        (["--slo-scales", "1.5,0"], "`--slo-scales`: '0' is not a number above 0"),
        (["--slo-scales", "nan"], "'nan' is not a number"),
        (["--ablations", "--slo-scales", "2"], "`--ablations` can't be combined"),
    ],
)
def test_options_that_make_no_sense_are_refused(config: Path, options: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _run(config, *options)


def test_scales_are_sorted_and_counted_once() -> None:
    assert scales_of("3, 1.2,3") == (1.2, 3.0)
    assert scales_of(None) == ()


@pytest.mark.parametrize(("options", "exit_code"), [((), 0), (("--check",), 1)])
def test_goals_are_printed_with_their_verdicts_and_end_the_command_if_they_must_hold(
    config: Path, options: tuple[str, ...], exit_code: int
) -> None:
    goals = """  goals:
    a10-7b-padded:
      punica: {kept: 0.5, gpu_time: 0.01}
    other: {punica: {kept: 1.0}}
"""
    config.write_text(CONFIG + goals)
    result = _run(config, *options)
    assert result.exit_code == exit_code
    assert "pass  punica keeps at least 50% of its promises: " in result.output
    assert "FAIL  punica's GPU time is at most 0.01 of most_idle's" in result.output
    assert result.output.count("punica keeps") == 1, "goals of another profile are not looked at"
