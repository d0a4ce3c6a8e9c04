"""Runs an actor's process: the ordinary `punica-serve scheduler`, `runner` or `frontend`.

When Ray has moved the scheduler to another node, the others connect to its new address without a restart: they read it
from a file before each attempt, and the actor keeps that file up to date.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import ray

from punica_serve.cli.children import Child, kept_running
from punica_serve.cli.up.on_ray.roles import Role
from punica_serve.cli.up.on_ray.scheduler_file import scheduler_url_file
from punica_serve.config.cluster import ClusterConfig
from punica_serve.errors import ConfigError
from punica_serve.links.addresses import frontend_url, listening_ports, scheduler_url, until_listening
from punica_serve.links.scheduler_url import FROM_FILE
from punica_serve.process.lifeline import lifeline
from punica_serve.process.module_command import module_command
from punica_serve.process.run import STOP_TIMEOUT_S, TOKEN_ENV

#: The previous process on this port, on the same node, may only be ending now.
PORT_TIMEOUT_S = 2 * STOP_TIMEOUT_S
PORT_POLL_INTERVAL_S = 0.5


@dataclass(frozen=True)
class _Process:
    config: ClusterConfig
    #: Arguments of its kind, in addition to the common ones.
    arguments: list[str] = field(default_factory=list)
    #: Host and port of a process that listens, and its URL.
    address: tuple[str, int] | None = None
    url: str = ""


async def serve(role: Role, folder: Path, on_listening: Callable[[str], None]) -> None:
    """Keeps the role's process running until cancelled, with its files in ``folder``; reports its URL once it listens.

    Raises ConfigError, in an exception group, when a user's mistake ended it.
    """
    process = await _process_of(role)
    async with AsyncExitStack() as stack:
        arguments = [role.kind, *process.arguments]
        if role.kind != "scheduler":
            url_file = await stack.enter_async_context(scheduler_url_file(folder, role.namespace))
            arguments += ["--scheduler-url", f"{FROM_FILE}{url_file}"]
        config_file = folder / "cluster.yaml"  # JSON is valid YAML
        config_file.write_text(process.config.model_dump_json(exclude_unset=True))
        arguments += ["--config", str(config_file), "--log-level", role.log_level]
        environment = {TOKEN_ENV: role.token, "PYTHONSAFEPATH": "1"}
        command = module_command("punica_serve.cli", *arguments)
        child = Child(role.name, command, stack.enter_context(lifeline()), environment)
        await stack.enter_async_context(kept_running([child]))
        if process.address is not None:
            await until_listening(*process.address)
            on_listening(process.url)
        await asyncio.Event().wait()


async def _process_of(role: Role) -> _Process:
    """Raises ConfigError for an address that can't be used."""
    config = ClusterConfig.model_validate_json(role.config)
    node_host = ray.util.get_node_ip_address()
    match role.kind:
        case "scheduler":
            port = await _port(node_host, config.scheduler.port, "`scheduler.port` in the config")
            scheduler = config.scheduler.model_copy(update={"host": node_host, "port": port})
            config = config.model_copy(update={"scheduler": scheduler})
            return _Process(
                config, address=(node_host, port), url=scheduler_url(node_host, port, is_tls=config.tls is not None)
            )
        case "runner":
            return _Process(config, ["--runner-id", role.runner_id])
        case "frontend":
            host = role.host or node_host
            port = await _port(host, role.port, "--port")
            url = frontend_url(host, port, is_tls=config.frontend.tls is not None)
            return _Process(config, ["--host", host, "--port", str(port)], address=(host, port), url=url)


async def _port(host: str, port: int, option: str) -> int:
    """The port, or a free one for 0. Raises ConfigError if it does not become free in time."""
    try:
        async with asyncio.timeout(PORT_TIMEOUT_S):
            while True:
                try:
                    return listening_ports(host, port, 1, option)[0]
                except ConfigError as error:
                    refusal = error
                await asyncio.sleep(PORT_POLL_INTERVAL_S)
    except TimeoutError:
        raise refusal from None
