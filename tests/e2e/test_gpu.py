"""The demo through the API of a cluster whose worker is a GPU: every request gets its own adapter there too."""

import subprocess
import sys

import pytest

from up_cluster import UpCluster


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(600)
@pytest.mark.parametrize("gpu_cluster", [{}, {"dtype": "float32"}], ids=["as shipped", "float32"], indirect=True)
def test_all_integers_through_the_api_of_a_gpu(gpu_cluster: UpCluster) -> None:
    """`check` itself wants 99 % exact answers of the base and of each adapter, and adapters mixed in the steps."""
    command = [sys.executable, "-m", "punica_serve.demo.check", "--url", gpu_cluster.url]
    check = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert check.returncode == 0, check.stdout + check.stderr + gpu_cluster.log.read_text()
    print(check.stdout)  # noqa: T201
