"""A group over two hosts: process trees of their own, with folders of their own, that meet over TCP alone."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from process_tree import alive, command_line, descendants
from punica_serve.bench.free_ports import free_ports
from punica_serve.process.run import TOKEN_ENV
from up_cluster import CONFIGS, TIMEOUT_S, UpCluster, wait_until

#: How a rank's process, and the leader's, are called.
FOLLOWERS, LEADER = "punica_serve.engine.rank_main", "punica_runner.worker"


class HostGroup(UpCluster):
    """The processes of a cluster whose only worker has a device on each of two hosts."""

    def __init__(self, folder: Path, frontend_port: int, environments: Sequence[Mapping[str, str]]) -> None:
        """``environments``: what each host has beside this process's."""
        self._folder = folder
        self._environments = environments
        self._frontend_port = frontend_port
        self.num_workers = 1
        #: By role: scheduler, frontend, host 0 and host 1.
        self.children: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{self._frontend_port}"]

    def start(self, name: str, host: int, *arguments: str) -> None:
        """Starts a process in the folder of a host."""
        folder = self._folder / f"host{host}"
        command = [sys.executable, "-P", "-m", "punica_serve.cli", *arguments, "--config", "cluster.yaml"]
        with (self._folder / f"{name}.log").open("ab") as log:
            environment = {**os.environ, **self._environments[host], TOKEN_ENV: "token"}
            child = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=environment)
        self.children[name] = child

    def start_runner(self, host: int) -> None:
        self.start(f"host{host}", host, "runner", "--host-index", f"{host}")

    def processes_of(self, host: int, role: str) -> list[int]:
        """Process ids below a host's runner, of those whose command line has ``role`` in it."""
        return [pid for pid in descendants(self.children[f"host{host}"].pid) if role in command_line(pid)]

    def processes(self, role: str = "") -> list[int]:
        return [pid for host in (0, 1) for pid in self.processes_of(host, role)]

    def logs(self) -> str:
        return "\n".join(f"{log.name}:\n{log.read_text()}" for log in sorted(self._folder.glob("*.log")))

    def await_ready(self, timeout_s: float) -> None:
        wait_until(lambda: self.num_gpus() == 1, self.logs, timeout_s)


@contextmanager
def on_two_hosts(
    folder: Path,
    environments: Sequence[Mapping[str, str]] = ({}, {}),
    ready_timeout_s: float = TIMEOUT_S,
    **settings: Any,
) -> Iterator[HostGroup]:
    """The demo on a group of two CPUs, one of each host. ``settings``: of its config, by section.

    On the way out it is stopped, and leaves nothing behind.
    """
    scheduler, frontend, rendezvous = free_ports(3)
    config = yaml.safe_load((CONFIGS / "demo-tp2.yaml").read_text())
    config |= {"scheduler": {"port": scheduler}, "frontend": {"port": frontend}}
    config["runner"] = {"devices": ["cpu"], "hosts": 2, "rendezvous": f"127.0.0.1:{rendezvous}"}
    for section, values in settings.items():
        config[section] = {**config.get(section, {}), **values}
    for host in (0, 1):
        (folder / f"host{host}").mkdir()
        own = {**config, "data_folder": f"{folder}/host{host}/data"}
        (folder / f"host{host}" / "cluster.yaml").write_text(yaml.safe_dump(own))
    cluster = HostGroup(folder, frontend, environments)
    with ExitStack() as stack:
        stack.callback(_stop, cluster)
        cluster.start("scheduler", 0, "scheduler")
        cluster.start("frontend", 0, "frontend")
        for host in (1, 0):
            cluster.start_runner(host)
        cluster.await_ready(ready_timeout_s)
        yield cluster


def _stop(cluster: HostGroup) -> None:
    left = cluster.processes()
    for name in ("frontend", "host1", "host0", "scheduler"):
        if (child := cluster.children.get(name)) is not None:
            child.terminate()
            child.wait(TIMEOUT_S)
    wait_until(lambda: not alive(left))
