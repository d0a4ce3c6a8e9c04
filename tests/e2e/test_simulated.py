"""Simulated GPUs behind the real processes, and a simulation's arrivals replayed against them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from up_cluster import UpCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_arrivals_are_replayed_live_and_compared_with_their_simulation(
    simulated_cluster: UpCluster, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-P", "-m", "punica_serve.cli", "simulate", str(tmp_path / "three.yaml")]
    command += ["--live", simulated_cluster.url, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    metrics = json.loads((out / "three-live.json").read_text())
    assert metrics["live"]["num_failed"] == metrics["simulated"]["num_failed"] == 0
    assert metrics["live"]["tokens_per_s"] > 0
    left = {path.name for path in out.iterdir()}
    pictures = {"three-live.png", "three-live-times.png"}
    assert left == {"three-live.json", "three-live.csv", "three-simulated.csv"} | pictures


def test_a_cluster_without_the_configs_adapters_gets_no_request(simulated_cluster: UpCluster, tmp_path: Path) -> None:
    document = yaml.safe_load((tmp_path / "three.yaml").read_text())
    document["dummy_adapters"]["count"] += 1
    (tmp_path / "more.yaml").write_text(yaml.safe_dump(document))
    command = [sys.executable, "-P", "-m", "punica_serve.cli", "simulate", str(tmp_path / "more.yaml")]
    command += ["--live", simulated_cluster.url, "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 2
    assert "lacks 1 adapter of the config, such as 'dummy-32'" in done.stderr
    assert simulated_cluster.counters()["arrived"] == 0
