"""The example and the benchmark of just-in-time fine-tuning, against the demo cluster."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from up_cluster import UpCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]


def test_the_example_trains_uploads_and_streams(cluster: UpCluster) -> None:
    command = [sys.executable, str(ROOT / "examples" / "just_in_time.py"), "--url", cluster.url, "--prompt", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.splitlines()
    assert first.startswith("training on 12 lines") and "first token" in done.stdout and last == "sieben"


def test_the_example_looks_for_the_cluster_before_it_trains() -> None:
    command = [sys.executable, str(ROOT / "examples" / "just_in_time.py"), "--url", "http://127.0.0.1:9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("no cluster answers at http://127.0.0.1:9") and "--url" in done.stderr


def test_the_example_says_what_to_install() -> None:
    example = ROOT / "examples" / "just_in_time.py"
    without = f"import runpy, sys; sys.modules['peft'] = None; runpy.run_path({str(example)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("peft is not installed") and ".[parity]" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_benchmark_uploads_beside_other_streams(cluster: UpCluster, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "punica_serve.cli", "bench", "just-in-time", "--url", cluster.url]
    command += ["--config", str(ROOT / "configs" / "demo.yaml"), "--out", str(tmp_path)]
    command += ["--uploads", "3", "--streams", "2", "--rest", "0.5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    tables = json.loads((tmp_path / "just-in-time.json").read_text())["tables"]
    assert tables["uploads"][0]["uploads"] == 3
    between, beside, _ = tables["gaps"]
    assert between["frames"] > 0 and beside["frames"] > 0
