"""Which processes a cluster on this machine has, and how each is started."""

import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from punica_serve.cli.addresses import dialled, scheduler_url
from punica_serve.logs import LogFormat, LogLevel


@dataclass(frozen=True)
class Process:
    """One process: what it is called in messages, and its command line."""

    name: str
    command: list[str]


@dataclass(frozen=True)
class Plan:
    """The processes of a cluster and where they listen."""

    config: Path
    log_level: LogLevel
    log_format: LogFormat
    scheduler_host: str
    scheduler_port: int
    #: Between the processes.
    is_tls: bool
    runner_ids: tuple[str, ...]
    frontend_host: str
    #: Of the frontends, whatever the config says.
    insecure_no_auth: bool
    #: One frontend listens on each.
    frontend_ports: tuple[int, ...]

    @property
    def urls(self) -> list[str]:
        """Of the frontends."""
        return [f"http://{dialled(self.frontend_host, port)}" for port in self.frontend_ports]

    def scheduler(self) -> Process:
        return self._process("scheduler", "scheduler", "--port", str(self.scheduler_port))

    def runners(self) -> list[Process]:
        return [
            self._process(
                _name("runner", runner_id, self.runner_ids), "runner", *self._dialling, "--runner-id", runner_id
            )
            for runner_id in self.runner_ids
        ]

    def frontends(self) -> list[Process]:
        return [
            self._process(
                _name("frontend", f"on port {port}", self.frontend_ports),
                *("frontend", *self._dialling, "--host", self.frontend_host, "--port", str(port)),
                *(["--insecure-no-auth"] if self.insecure_no_auth else []),
            )
            for port in self.frontend_ports
        ]

    @property
    def _dialling(self) -> list[str]:
        return ["--scheduler-url", scheduler_url(self.scheduler_host, self.scheduler_port, is_tls=self.is_tls)]

    def _process(self, name: str, *arguments: str) -> Process:
        """`punica-serve ...`, safe from what lies in the working directory."""
        common = ["--config", str(self.config), "--log-level", self.log_level, "--log-format", self.log_format]
        return Process(name, [sys.executable, "-P", "-m", "punica_serve.cli", *arguments, *common])


def runner_ids(num_runners: int) -> tuple[str, ...]:
    """The host's name, as a runner is called by default; numbered if there are several."""
    host = socket.gethostname()
    return (host,) if num_runners == 1 else tuple(f"{host}-{index}" for index in range(num_runners))


def _name(role: str, which: str, all_of_role: tuple[object, ...]) -> str:
    return role if len(all_of_role) == 1 else f"{role} {which}"
