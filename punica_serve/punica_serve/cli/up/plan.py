"""The processes of a cluster on this machine, and their command lines."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from punica_serve.links.addresses import frontend_url, scheduler_url
from punica_serve.process.logs import LogFormat, LogLevel
from punica_serve.process.module_command import module_command

if TYPE_CHECKING:
    from punica_serve.config.tls_section import HttpsConfig


@dataclass(frozen=True)
class Process:
    """One process: its name in messages, and its command line."""

    name: str
    command: list[str]
    #: Added to its environment.
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """The processes of a cluster, and the addresses they listen on."""

    config: Path
    log_level: LogLevel
    log_format: LogFormat
    scheduler_host: str
    scheduler_port: int
    #: TLS between the processes.
    is_tls: bool
    runner_ids: tuple[str, ...]
    frontend_host: str
    #: Disables the frontends' authentication, overriding the config.
    insecure_no_auth: bool
    #: One frontend listens on each.
    frontend_ports: tuple[int, ...]
    #: The frontends' certificate for clients; None means HTTP.
    https: "HttpsConfig | None" = None
    #: Added to the frontends' environment.
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def urls(self) -> list[str]:
        """The frontends' URLs."""
        return [frontend_url(self.frontend_host, port, is_tls=self.https is not None) for port in self.frontend_ports]

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
                environment=self.environment,
            )
            for port in self.frontend_ports
        ]

    @property
    def _dialling(self) -> list[str]:
        return ["--scheduler-url", scheduler_url(self.scheduler_host, self.scheduler_port, is_tls=self.is_tls)]

    def _process(self, name: str, *arguments: str, environment: Mapping[str, str] = MappingProxyType({})) -> Process:
        """Runs `punica-serve ...`, without importing from the working directory."""
        common = ["--config", str(self.config), "--log-level", self.log_level, "--log-format", self.log_format]
        return Process(name, module_command("punica_serve.cli", *arguments, *common), environment)


def runner_ids(num_runners: int) -> tuple[str, ...]:
    """The host's name, which is the default; numbered if there are several."""
    host = socket.gethostname()
    return (host,) if num_runners == 1 else tuple(f"{host}-{index}" for index in range(num_runners))


def _name(role: str, which: str, all_of_role: tuple[object, ...]) -> str:
    return role if len(all_of_role) == 1 else f"{role} {which}"
