"""The scheduler under test, an unmodified `punica-serve scheduler`, and the kernel's statistics of its process and
machine.
"""

import os
import secrets
import socket
import subprocess
import time
from pathlib import Path

import yaml

from punica_serve.bench.free_ports import free_port
from punica_serve.bench.process_figures import ProcessFigures
from punica_serve.errors import ClusterUnavailable, ConfigError
from punica_serve.process.ending import end_program
from punica_serve.process.module_command import module_command
from punica_serve.process.run import TOKEN_ENV

_HOST = "127.0.0.1"
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 5.0
_PROC = Path("/proc")


class SchedulerProcess:
    """A context manager: the process listens inside. ``folder`` gets its config and its log."""

    def __init__(self, folder: Path) -> None:
        if not (_PROC / "self/stat").exists():
            raise ConfigError("bench control-plane reads processes' times from /proc, so it needs Linux")
        port = free_port()
        self.url = f"ws://{_HOST}:{port}"
        self.token = secrets.token_hex(16)
        self._log = folder / "scheduler.log"
        config = folder / "control-plane.yaml"
        # The queue is practically unlimited, and nothing waits for peers to reconnect.
        scheduler = {"port": port, "settle_s": 0, "max_queue": 1_000_000}
        config.write_text(yaml.safe_dump({"engine": {"model": str(folder)}, "scheduler": scheduler}), encoding="utf-8")
        arguments = ("scheduler", "--config", str(config), "--log-level", "warning")
        self._command = module_command("punica_serve.cli", *arguments)

    def __enter__(self) -> "SchedulerProcess":
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, env={**os.environ, TOKEN_ENV: self.token}, stderr=log)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        end_program(self._process, _STOP_TIMEOUT_S)

    def wait_until_it_listens(self) -> None:
        """Raises ClusterUnavailable with the scheduler's own log if it does not listen in time."""
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        host, _, port = self.url.removeprefix("ws://").rpartition(":")
        while not _accepts(host, int(port)):
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise ClusterUnavailable(
                    f"the scheduler did not start: {self._log.read_text(errors='replace')[-2000:]}"
                )
            time.sleep(0.05)

    @property
    def figures(self) -> ProcessFigures:
        return ProcessFigures(self._process.pid)


def idle_s() -> float:
    """Total idle time of the machine's cores so far."""
    _, _, _, _, idle, iowait, *_ = (_PROC / "stat").read_text().split("\n", 1)[0].split()
    return (int(idle) + int(iowait)) / os.sysconf("SC_CLK_TCK")


def _accepts(host: str, port: int) -> bool:

    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True
