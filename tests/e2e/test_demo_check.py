"""The demo's proof: every request gets its own adapter, for all integers, adapters and both transports."""

import subprocess
import sys

import pytest

from up_cluster import UpCluster


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_integers_are_exact_through_the_api(cluster: UpCluster) -> None:
    command = [sys.executable, "-m", "punica_serve.demo.check", "--url", cluster.url]
    check = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert check.returncode == 0, check.stdout + check.stderr
    assert check.stdout.count("1000 of 1000") == 12, check.stdout
