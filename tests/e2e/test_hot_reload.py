"""An adapter that is registered again and again, while it and others are used."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CONFIG = Path(__file__).parents[2] / "configs" / "demo.yaml"
NUM_RELOADS = 200


def test_two_hundred_reloads_under_load(tmp_path: Path) -> None:
    """Every answer is wholly of one version, none fails, and nothing is left behind: else it exits with code 1."""
    command = [sys.executable, "-P", "-m", "punica_serve.cli", "bench", "hot-reload", "--config", str(CONFIG)]
    command += ["--rate", "10", "--in-flight", "8", "--every", "0.3"]
    command += ["--reloads", str(NUM_RELOADS), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=880, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    tables = json.loads((tmp_path / "hot-reload.json").read_text())["tables"]
    assert tables["load"][0]["reloads"] == NUM_RELOADS
    answers = {row["adapter"]: row for row in tables["answers"]}
    assert len(answers) == 5 and all(row["whole"] == row["requests"] > 0 for row in answers.values())
    # Each version is asked for once at least.
    assert answers["changing"]["whole"] >= NUM_RELOADS
