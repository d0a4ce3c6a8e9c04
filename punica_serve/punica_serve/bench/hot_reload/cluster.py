"""The cluster under test: `punica-serve up` as it is, with a data folder and ports of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml

from punica_serve.bench.frontend.processes import ProcessFigures
from punica_serve.cli.addresses import listening_ports
from punica_serve.cli.children import lifeline
from punica_serve.config import load_config
from punica_serve.errors import ClusterUnavailable, ConfigError
from punica_serve.process import LIFELINE_ENV

_START_TIMEOUT_S = 300.0
_STOP_TIMEOUT_S = 60.0
_POLL_S = 0.2
_PROC = Path("/proc")

#: What in a command line tells a process's job.
_JOBS = {"punica_runner.worker": "worker"} | {
    f"punica_serve.cli {job}": job for job in ("frontend", "scheduler", "runner")
}


@dataclass(frozen=True)
class RunningCluster:
    """A cluster that answers."""

    url: str
    data_folder: Path
    #: By its job, with a number where there are several.
    processes: dict[str, ProcessFigures]


@contextmanager
def running_cluster(config: Path, folder: Path) -> Iterator[RunningCluster]:
    """Runs until the end of the block. Raises ConfigError, and ClusterUnavailable if it does not come up."""
    if not (_PROC / "self/stat").exists():
        raise ConfigError("bench hot-reload reads processes' memory from /proc, which only Linux has")
    (port,) = listening_ports("127.0.0.1", 0, 1, "--port")
    num_gpus = _write_config(config, folder, port)
    with lifeline() as fd, _up(folder / "cluster.yaml", fd) as up:
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(url, num_gpus, up)
            yield RunningCluster(url, folder / "data", _processes(up.pid))
        finally:
            up.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                up.wait(_STOP_TIMEOUT_S)
            up.kill()


def _up(config: Path, lifeline_fd: int) -> "subprocess.Popen[bytes]":
    """In a session of its own: a Ctrl-C in the terminal reaches the benchmark alone, which then stops it in order."""
    command = [sys.executable, "-P", "-m", "punica_serve.cli", "up", "--log-level", "error", "--config", str(config)]
    return subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        env={**os.environ, LIFELINE_ENV: str(lifeline_fd)},
        pass_fds=(lifeline_fd,),
        start_new_session=True,
    )


def _write_config(config: Path, folder: Path, port: int) -> int:
    """Returns how many GPUs the cluster will have."""
    cluster = load_config(config)
    document = cluster.model_dump(mode="json", exclude_unset=True)
    document["frontend"] = {**document.get("frontend", {}), "port": port}
    document["scheduler"] = {**document.get("scheduler", {}), "port": 0}
    document["data_folder"] = str(folder / "data")
    (folder / "cluster.yaml").write_text(yaml.safe_dump(document))
    return len(cluster.runner.devices)


def _wait_until_ready(url: str, num_gpus: int, up: "subprocess.Popen[bytes]") -> None:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while not _is_ready(url, num_gpus):
        if up.poll() is not None:
            raise ClusterUnavailable("`punica-serve up` ended; what it says above is why")
        if time.monotonic() > deadline_s:
            raise ClusterUnavailable(f"the cluster did not come up within {_START_TIMEOUT_S:g} s")
        time.sleep(_POLL_S)


def _is_ready(url: str, num_gpus: int) -> bool:
    try:
        answer = httpx.get(f"{url}/v1/cluster", trust_env=False)
    except httpx.HTTPError:
        return False
    return answer.is_success and len(answer.json()["gpus"]) == num_gpus


def _processes(up: int) -> dict[str, ProcessFigures]:
    named: dict[str, ProcessFigures] = {}
    for pid in _descendants(up):
        line = (_PROC / str(pid) / "cmdline").read_text().replace("\0", " ")
        job = next((job for part, job in _JOBS.items() if part in line), None)
        if job is not None:
            same = sum(name.startswith(job) for name in named)
            named[f"{job} {same + 1}" if same else job] = ProcessFigures(pid)
    return named


def _descendants(pid: int) -> list[int]:
    """Parents before children."""
    found = [pid]
    for parent in found:  # grows while it is walked
        for children in (_PROC / str(parent) / "task").glob("*/children"):
            found += map(int, children.read_text().split())
    return found[1:]
