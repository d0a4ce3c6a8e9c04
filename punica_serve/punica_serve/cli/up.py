"""`punica-serve up`: a whole cluster on this machine, from one config file."""

import asyncio
import json
import logging
import os
import secrets
import shlex
import sys
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from punica_serve import process
from punica_serve.cli.addresses import dialled, listening_port, scheduler_url
from punica_serve.cli.config_check import check_config
from punica_serve.cli.options import DEFAULT_CONFIG, ConfigOption, HostOption, LogLevelOption, PortOption
from punica_serve.notify import READY, notify
from punica_serve.process import LogLevel

if TYPE_CHECKING:
    import httpx
    from rich.console import Console

#: The three processes stop one after the other.
STOP_TIMEOUT_S = 4 * process.STOP_TIMEOUT_S
POLL_INTERVAL_S = 0.05
POLL_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Cluster:
    """How the three processes start and where they listen."""

    config: Path
    log_level: LogLevel
    scheduler_host: str
    scheduler_port: int
    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{dialled(self.host, self.port)}"

    def command(self, name: str) -> list[str]:
        """`punica-serve NAME ...`, safe from what lies in the working directory."""
        dialling = ["--scheduler-url", scheduler_url(self.scheduler_host, self.scheduler_port)]
        own = {
            "scheduler": ["--port", str(self.scheduler_port)],
            "runner": dialling,
            "frontend": [*dialling, "--host", self.host, "--port", str(self.port)],
        }
        common = ["--config", str(self.config), "--log-level", self.log_level]
        return [sys.executable, "-P", "-m", "punica_serve.cli", name, *common, *own[name]]


def command(
    config: ConfigOption = DEFAULT_CONFIG,
    host: HostOption = None,
    port: PortOption = None,
    log_level: LogLevelOption = LogLevel.WARNING,
) -> None:
    """Run a whole cluster on this machine: scheduler, runner and frontend. Ctrl-C stops it."""
    from rich.console import Console

    cluster = _check(config, host, port, log_level)
    serve = _serve(cluster, Console(highlight=False))
    process.run("up", serve, log_level=log_level, stop_timeout_s=STOP_TIMEOUT_S)


def _check(path: Path, host: str | None, port: int | None, log_level: LogLevel) -> Cluster:
    """Finds what can be found wrong before anything starts. Raises ConfigError and ModelRejected."""
    from punica_serve.config import load_config

    config = load_config(path)
    check_config(config)
    host = host or config.frontend.host
    return Cluster(
        config=path.resolve(),
        log_level=log_level,
        scheduler_host=config.scheduler.host,
        scheduler_port=listening_port(config.scheduler.host, config.scheduler.port, "`scheduler.port` in the config"),
        host=host,
        port=listening_port(host, config.frontend.port if port is None else port, "--port"),
    )


async def _serve(cluster: Cluster, console: "Console") -> None:
    """Keeps the processes running until cancelled, and then stops them in the opposite order."""
    import httpx

    from punica_serve.cli.children import Child, lifeline

    token = os.environ.get(process.TOKEN_ENV) or secrets.token_hex(16)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells of every poll
    environment = {process.TOKEN_ENV: token, "PYTHONSAFEPATH": "1"}
    async with AsyncExitStack() as stack:
        lifeline_fd = stack.enter_context(lifeline())

        async def start(name: str) -> None:
            child = Child(name, cluster.command(name), lifeline_fd, environment)
            await stack.enter_async_context(child.kept_running())

        await start("scheduler")
        await _until_listening(cluster.scheduler_host, cluster.scheduler_port)  # the others would complain
        await start("runner")
        await start("frontend")
        async with httpx.AsyncClient(base_url=cluster.url, timeout=POLL_TIMEOUT_S, trust_env=False) as client:
            models = await _until_ready(client, console)
        _print_banner(cluster.url, models, console)
        notify(READY)
        await asyncio.Event().wait()


async def _until_listening(host: str, port: int) -> None:
    while True:
        with suppress(OSError):
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
            return await writer.wait_closed()
        await asyncio.sleep(POLL_INTERVAL_S)


class _NotReady(Exception):
    """The message is what the cluster waits for."""


async def _until_ready(client: "httpx.AsyncClient", console: "Console") -> list[str]:
    """Names of the models, the base first, once they are served.

    Shows what the cluster waits for until then: beside a spinner on a terminal, else a line for each change.
    """
    from rich.text import Text

    shown = None
    with console.status("starting") as status:
        while True:
            try:
                return await _models(client)
            except _NotReady as error:
                missing = str(error)
            if missing != shown:
                status.update(Text(missing))
                if not console.is_terminal:
                    console.print(missing, markup=False, soft_wrap=True)
                shown = missing
            await asyncio.sleep(POLL_INTERVAL_S)


async def _models(client: "httpx.AsyncClient") -> list[str]:
    """Raises _NotReady. A frontend that answers may be gone the next moment."""
    import httpx

    try:
        ready = await client.get("/ready")
        if not ready.is_success:
            raise _NotReady(ready.json()["error"]["message"])
        models = await client.get("/v1/models")
        return [model["id"] for model in models.json()["data"]]
    except httpx.TransportError:
        raise _NotReady("waiting for the frontend") from None
    except (ValueError, KeyError, TypeError):
        raise _NotReady(f"what answers at {client.base_url} is no frontend of Punica Serve") from None


def _print_banner(url: str, models: list[str], console: "Console") -> None:
    base, *adapters = models
    body = json.dumps({"prompt": "42", "lora_id": adapters[0] if adapters else None})
    console.print(f"[bold green]Punica Serve is ready[/]: {url} (all routes: {url}/docs)", soft_wrap=True)
    console.print(
        f"  base model  {base}\n"
        f"  adapters    {', '.join(adapters) or 'none'}\n"
        f"Try it:\n"
        f"  curl -s {url}/v1/generate -H 'content-type: application/json' -d {shlex.quote(body)}\n"
        f"Ctrl-C stops it.",
        soft_wrap=True,
        markup=False,
    )
