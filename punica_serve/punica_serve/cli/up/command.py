"""The command `up`: its options, and what can be found wrong before anything starts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from punica_serve import process
from punica_serve.cli.addresses import listening_ports
from punica_serve.cli.config_check import check_config
from punica_serve.cli.options import DEFAULT_CONFIG, ConfigOption, HostOption, LogLevelOption, PortOption
from punica_serve.cli.up.devices import check_devices
from punica_serve.cli.up.plan import Plan, runner_ids
from punica_serve.errors import ConfigError
from punica_serve.process import LogLevel

if TYPE_CHECKING:
    from punica_serve.config import ClusterConfig

#: Frontends, runners and scheduler stop one after the other.
STOP_TIMEOUT_S = 4 * process.STOP_TIMEOUT_S

RunnersOption = Annotated[
    int,
    typer.Option("--runners", min=1, help="Runners, each with all devices of the config; GPUs can have but one."),
]
FrontendsOption = Annotated[
    int, typer.Option("--frontends", min=1, help="Frontends, on consecutive ports from the first on.")
]


def command(
    config: ConfigOption = DEFAULT_CONFIG,
    host: HostOption = None,
    port: PortOption = None,
    runners: RunnersOption = 1,
    frontends: FrontendsOption = 1,
    log_level: LogLevelOption = LogLevel.WARNING,
) -> None:
    """Run a whole cluster on this machine: scheduler, runners and frontends. Ctrl-C stops it."""
    from rich.console import Console

    from punica_serve.cli.up.local import serve

    plan = _plan(config, host, port, runners, frontends, log_level)
    process.run("up", serve(plan, Console(highlight=False)), log_level=log_level, stop_timeout_s=STOP_TIMEOUT_S)


def _plan(
    path: Path, host: str | None, port: int | None, num_runners: int, num_frontends: int, log_level: LogLevel
) -> Plan:
    """Raises ConfigError and ModelRejected."""
    from punica_serve.config import load_config

    config = load_config(path)
    check_config(config)
    _check_runners(config, num_runners)
    check_devices(config.runner.devices)
    host = host or config.frontend.host
    scheduler = config.scheduler
    (scheduler_port,) = listening_ports(scheduler.host, scheduler.port, 1, "`scheduler.port` in the config")
    return Plan(
        config=path.resolve(),
        log_level=log_level,
        scheduler_host=scheduler.host,
        scheduler_port=scheduler_port,
        is_tls=config.tls is not None,
        runner_ids=runner_ids(num_runners),
        frontend_host=host,
        frontend_ports=listening_ports(host, config.frontend.port if port is None else port, num_frontends, "--port"),
    )


def _check_runners(config: "ClusterConfig", num_runners: int) -> None:
    """A GPU belongs to one runner. Raises ConfigError."""
    gpu = next((device for device in config.runner.devices if device.startswith("cuda")), None)
    if gpu and num_runners > 1:
        raise ConfigError(
            f"--runners {num_runners} would give {gpu} to each of them; one runner serves all GPUs of a host",
            param="--runners",
        )
