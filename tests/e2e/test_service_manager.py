"""Each process as a unit of systemd: `Type=notify`, `WatchdogSec=`, and SIGTERM at the end."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from waits import DEADLINE_S

pytestmark = pytest.mark.slow

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize("role", ["scheduler", "runner", "frontend"])
def test_a_process_says_that_it_is_ready_that_it_lives_and_that_it_stops(role: str, tmp_path: Path) -> None:
    config = yaml.safe_load((CONFIGS / "sim" / "live-16.yaml").read_text())
    config |= {"runner": {"devices": ["simulated"]}, "scheduler": {"port": 0}, "frontend": {"port": 0}}
    config["data_folder"] = str(tmp_path / "data")
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-P", "-m", "punica_serve.cli", role, "--config", str(tmp_path / "one.yaml")]
    if role != "scheduler":
        command += ["--scheduler-url", "ws://127.0.0.1:1"]
    told = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000", "PUNICA_CLUSTER_TOKEN": "secret"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(told["NOTIFY_SOCKET"])
        listener.settimeout(DEADLINE_S)
        process = subprocess.Popen(command, env={**os.environ, **told})
        try:
            heard: set[bytes] = set()
            while not heard >= {b"READY=1", b"WATCHDOG=1"}:
                heard.add(listener.recv(100))
            process.terminate()
            while b"STOPPING=1" not in heard:
                heard.add(listener.recv(100))
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()
            process.wait()
