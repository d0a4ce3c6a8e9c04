"""The health check of containers, as a shell runs it."""

import os
import subprocess
import time
from pathlib import Path

import pytest

ALIVE = Path(__file__).parents[2] / "docker/alive"


def check(file: Path, tools: Path) -> subprocess.CompletedProcess[str]:
    """With a `kill` that only says what it was told."""
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "PUNICA_ALIVE_FILE": str(file)}
    script = ALIVE.read_text().replace("kill -KILL -1", "told kill -KILL -1")
    return subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    (tmp_path / "told").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "told").chmod(0o755)
    return tmp_path


def test_a_process_that_is_not_ready_yet_is_left_alone(tools: Path) -> None:
    done = check(tools / "alive", tools)
    assert (done.returncode, done.stdout) == (1, "not ready yet\n")


def test_a_process_that_gives_signs_is_well(tools: Path) -> None:
    (tools / "alive").touch()
    done = check(tools / "alive", tools)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_process_that_is_frozen_is_killed_with_all_that_it_started(tools: Path) -> None:
    (tools / "alive").touch()
    long_ago_s = time.time() - 60
    os.utime(tools / "alive", (long_ago_s, long_ago_s))
    done = check(tools / "alive", tools)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "kill -KILL -1"
