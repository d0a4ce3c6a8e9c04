"""A benchmark's cluster: an unmodified `punica-serve up` with its own data folder and ports."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml

from punica_serve.bench.free_ports import free_ports
from punica_serve.bench.process_figures import ProcessFigures
from punica_serve.config.cluster import ClusterConfig
from punica_serve.errors import ClusterUnavailable, ConfigError
from punica_serve.process.ending import end_program
from punica_serve.process.lifeline import lifeline
from punica_serve.process.module_command import module_command
from punica_serve.process.run import LIFELINE_ENV

_START_TIMEOUT_S = 300.0
_STOP_TIMEOUT_S = 60.0
_POLL_S = 0.2
_REGISTRY_TIMEOUT_S = 60.0
_PROC = Path("/proc")

#: Part of a command line -> the process's job.
_JOBS = {"punica_runner.worker": "worker"} | {
    f"punica_serve.cli {job}": job for job in ("frontend", "scheduler", "runner")
}


@dataclass(frozen=True)
class RunningCluster:
    """A cluster that is ready."""

    url: str
    data_folder: Path
    #: By job, numbered where there are several.
    processes: dict[str, ProcessFigures]


@contextmanager
def running_cluster(config: ClusterConfig, folder: Path) -> Iterator[RunningCluster]:
    """Runs a cluster while the context is open. Raises ConfigError, and ClusterUnavailable if it does not start."""
    if not (_PROC / "self/stat").exists():
        raise ConfigError("this benchmark reads processes' memory from /proc, so it needs Linux")
    port, scheduler_port = free_ports(2)
    num_workers = _write_config(config, folder, port, scheduler_port)
    with lifeline() as fd:
        up = _up(folder / "cluster.yaml", fd)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(url, num_workers, up)
            yield RunningCluster(url, folder / "data", _processes(up.pid))
        finally:
            up.send_signal(signal.SIGINT)
            end_program(up, _STOP_TIMEOUT_S)


def _up(config: Path, lifeline_fd: int) -> "subprocess.Popen[bytes]":
    """Starts it in a new session: a Ctrl-C in the terminal reaches only the benchmark, which then stops it in order."""
    command = module_command("punica_serve.cli", "up", "--log-level", "error", "--config", str(config))
    return subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        env={**os.environ, LIFELINE_ENV: str(lifeline_fd)},
        pass_fds=(lifeline_fd,),
        start_new_session=True,
    )


def _write_config(cluster: ClusterConfig, folder: Path, port: int, scheduler_port: int) -> int:
    """Returns the cluster's number of GPUs, or of groups of them."""
    document = cluster.model_dump(mode="json", exclude_unset=True)
    document["frontend"] = {**document.get("frontend", {}), "port": port}
    document["scheduler"] = {**document.get("scheduler", {}), "port": scheduler_port}
    # The benchmark's own gigabytes may hold up the disk; changes should then be slow, not refused.
    document["registry"] = {"timeout_s": _REGISTRY_TIMEOUT_S, **document.get("registry", {})}
    document["data_folder"] = str(folder / "data")
    (folder / "cluster.yaml").write_text(yaml.safe_dump(document))
    return len(cluster.runner.workers)


def _wait_until_ready(url: str, num_workers: int, up: "subprocess.Popen[bytes]") -> None:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while not _is_ready(url, num_workers):
        if up.poll() is not None:
            raise ClusterUnavailable("`punica-serve up` ended; see its messages above")
        if time.monotonic() > deadline_s:
            raise ClusterUnavailable(f"the cluster did not start within {_START_TIMEOUT_S:g} s; see its messages above")
        time.sleep(_POLL_S)


def _is_ready(url: str, num_workers: int) -> bool:
    try:
        answer = httpx.get(f"{url}/v1/cluster", trust_env=False)
    except httpx.HTTPError:
        return False
    return answer.is_success and len(answer.json()["gpus"]) == num_workers


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
    """Process ids, parents before children."""
    found = [pid]
    for parent in found:  # grows during the loop
        for children in (_PROC / str(parent) / "task").glob("*/children"):
            found += map(int, children.read_text().split())
    return found[1:]
