import subprocess
import sys

from up_cluster import UpCluster


def test_top_shows_the_gpus_of_the_demo(cluster: UpCluster) -> None:
    command = [sys.executable, "-m", "punica_serve.cli", "top", "--once", "--url", cluster.url]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout
    assert "2 GPUs  1 runner  1 frontend" in shown
    assert shown.count("/32 ") == 2
