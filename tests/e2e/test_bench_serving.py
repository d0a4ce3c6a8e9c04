"""`bench serving` against a running cluster, through both APIs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from up_cluster import UpCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_the_whole_stack_is_measured_through_both_apis(cluster: UpCluster, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "punica_serve.cli", "bench", "serving", "--url", cluster.url]
    command += ["--config", "demo", "--adapter-name", "roman", "--workloads", "ours", "--populations", "distinct,base"]
    command += ["--apis", "http,websocket", "--requests", "6", "--clients", "3", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "serving.json").read_text())["tables"]["serving"]
    assert [(row["population"], row["api"]) for row in rows] == [
        *(("distinct", "http"), ("distinct", "websocket")),
        *(("base", "http"), ("base", "websocket")),
    ]
    assert all(row["num_failed"] == 0 and row["tokens_per_s"] > 0 for row in rows)
    assert (tmp_path / "serving.png").exists()
