"""The command `up`: its options, and the checks before anything starts."""

import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from punica_serve.cli.config_check import check_config, check_host
from punica_serve.cli.options import (
    DEFAULT_CONFIG,
    ConfigOption,
    HostOption,
    LogFormatOption,
    LogLevelOption,
    NoAuthOption,
    PortOption,
    check_key,
)
from punica_serve.cli.up.devices import check_devices
from punica_serve.cli.up.on_ray.plan import RayPlan
from punica_serve.cli.up.plan import Plan, runner_ids
from punica_serve.errors import ConfigError
from punica_serve.links.addresses import listening_ports
from punica_serve.process import run
from punica_serve.process.logs import LogFormat, LogLevel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from punica_serve.cli.up.written_config import WrittenConfig
    from punica_serve.config.cluster import ClusterConfig

#: Frontends, runners and scheduler stop one after the other.
STOP_TIMEOUT_S = 4 * run.STOP_TIMEOUT_S

RunnersOption = Annotated[
    int,
    typer.Option(
        "--runners",
        min=1,
        max=1_024,
        help="Number of runners, each with all devices of the config; with GPUs, only one.",
    ),
]
FrontendsOption = Annotated[
    int, typer.Option("--frontends", min=1, max=1_024, help="Number of frontends, on consecutive ports.")
]
RayOption = Annotated[
    bool, typer.Option("--ray", help="Run on Ray's nodes, with a runner on each; uses RAY_ADDRESS, or starts Ray here.")
]
RayKeyOption = Annotated[
    str | None,
    typer.Option(
        envvar="PUNICA_API_KEY",
        callback=check_key,
        help="With --ray and API keys: a key, needed to read the scheduler's advice.",
    ),
]


ModelOption = Annotated[
    str | None,
    typer.Option("--model", metavar="FOLDER", help="Instead of a config: a base model in Hugging Face's format."),
]
AdapterOption = Annotated[
    list[str] | None,
    typer.Option("--adapter", metavar="NAME=FOLDER", help="With --model: a PEFT adapter; may be repeated."),
]
DeviceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--device", metavar="NAME", help="With --model: cpu, cuda:0, or a group, cuda:0,cuda:1; may be repeated."
    ),
]


@dataclass(frozen=True)
class Options:
    """The options as given."""

    path: Path
    #: The config for `--model`, which is written to ``path`` after the checks; None with `--config`.
    written: "WrittenConfig | None"
    host: str | None
    port: int | None
    num_runners: int
    num_frontends: int
    insecure_no_auth: bool
    key: str | None = field(repr=False)
    log_level: LogLevel
    log_format: LogFormat | None


def command(
    context: typer.Context,
    config: ConfigOption = DEFAULT_CONFIG,
    model: ModelOption = None,
    adapter: AdapterOption = None,
    device: DeviceOption = None,
    host: HostOption = None,
    port: PortOption = None,
    runners: RunnersOption = 1,
    frontends: FrontendsOption = 1,
    on_ray: RayOption = False,
    key: RayKeyOption = None,
    insecure_no_auth: NoAuthOption = False,
    log_level: LogLevelOption = LogLevel.WARNING,
    log_format: LogFormatOption = None,
) -> None:
    """Run a whole cluster: scheduler, runners and frontends, on this machine or on Ray's nodes. Ctrl-C stops it."""
    from rich.console import Console

    source = context.get_parameter_source("config")
    is_given = source is not None and source.name == "COMMANDLINE"
    written = _written_config(model, adapter or [], device or [], is_given=is_given)
    path = config if written is None else written.path
    options = Options(path, written, host, port, runners, frontends, insecure_no_auth, key, log_level, log_format)
    console = Console(highlight=False)
    if on_ray:
        from punica_serve.cli.up.on_ray.serve import serve as serve_on_ray

        ray_plan = _ray_plan(options)
        _write(written, console)
        serving, log_format = serve_on_ray(ray_plan, console), ray_plan.config.log.format
    else:
        from punica_serve.cli.up.local import serve

        plan = _plan(options)
        _write(written, console)
        serving, log_format = serve(plan, console), plan.log_format
    run.run_process("up", serving, log_level=log_level, log_format=log_format, stop_timeout_s=STOP_TIMEOUT_S)


def _written_config(
    model: str | None, adapters: list[str], devices: list[str], *, is_given: bool
) -> "WrittenConfig | None":
    """The config for `--model` and what goes with it; None without `--model`. Raises ConfigError.

    ``is_given``: whether `--config` was there.
    """
    if model is None:
        if adapters or devices:
            name = "adapter" if adapters else "device"
            raise ConfigError(f"`--{name}` goes with `--model`; a config file has its own setting", param=name)
        return None
    if is_given:
        raise ConfigError("`--model` and `--config` both say what to serve; give only one", param="model")
    from punica_serve.cli.given_model import check_given_model
    from punica_serve.cli.up.written_config import config_for

    written = config_for(model, adapters, devices)
    check_given_model("`--model`", model, written.config.engine.model, takes_shapes=False)
    return written


def _write(written: "WrittenConfig | None", console: "Console") -> None:
    """Writes the config for `--model`, if there is one, and prints its path. Raises ConfigError."""
    if written is not None:
        written.write()
        console.print(f"config: {written.path}", soft_wrap=True)


def _plan(options: Options) -> Plan:
    """The processes on this machine. Raises ConfigError and ModelRejected."""
    config, checked = _checked_config(options)
    _check_runners(config, options.num_runners)
    check_devices(config.runner.devices)
    check_host(config)
    host = options.host or config.frontend.host
    port = config.frontend.port if options.port is None else options.port
    scheduler = config.scheduler
    (scheduler_port,) = listening_ports(scheduler.host, scheduler.port, 1, "scheduler.port")
    frontend_ports = listening_ports(host, port, options.num_frontends, "--port")
    if scheduler_port in frontend_ports:
        ports = "the frontend's port" if len(frontend_ports) == 1 else "one of the frontends' ports"
        message = f"`scheduler.port` {scheduler_port} is {ports} too; change it or `--port`"
        raise ConfigError(message, param="scheduler.port")
    return Plan(
        config=options.path.resolve(),
        log_level=options.log_level,
        log_format=config.log.format,
        scheduler_host=scheduler.host,
        scheduler_port=scheduler_port,
        is_tls=config.tls is not None,
        runner_ids=runner_ids(options.num_runners),
        frontend_host=host,
        insecure_no_auth=options.insecure_no_auth,
        frontend_ports=frontend_ports,
        https=config.frontend.tls,
        environment=checked,
    )


def _ray_plan(options: Options) -> RayPlan:
    """The processes on Ray. Raises ConfigError and ModelRejected."""
    config, _ = _checked_config(options)
    if options.num_runners > 1:
        raise ConfigError(
            "`--runners` is for one machine; with `--ray` each of Ray's nodes has one runner", param="runners"
        )
    return RayPlan(
        config=config,
        namespace=f"punica-{secrets.token_hex(4)}",
        token=run.given_token() or secrets.token_hex(16),
        log_level=options.log_level,
        host=options.host,
        port=config.frontend.port if options.port is None else options.port,
        num_frontends=options.num_frontends,
        key=options.key,
    )


def _checked_config(options: Options) -> "tuple[ClusterConfig, Mapping[str, str]]":
    """The config with the options applied, and what the frontends' environment tells of its adapters.

    Raises ConfigError and ModelRejected.
    """
    from punica_serve.config.cluster import load_config

    config = load_config(options.path) if options.written is None else options.written.config
    config = config.with_log_format(options.log_format).without_auth(options.insecure_no_auth)
    if config.runner.hosts > 1:
        raise ConfigError(
            f"`runner.hosts` is {config.runner.hosts}, and `up` runs on one; start the processes by themselves:"
            " `punica-serve scheduler`, `frontend`, and `runner --host-index` on each host",
            param="runner.hosts",
        )
    model = check_config(config)
    if options.written is None:
        return config, {}
    from punica_serve.cli.up.given_adapters import check_given_adapters

    return config, check_given_adapters(config, model).to_environment()


def _check_runners(config: "ClusterConfig", num_runners: int) -> None:
    """Raises ConfigError if several runners would share a GPU."""
    gpu = next((device for device in config.runner.devices if device.startswith("cuda")), None)
    if gpu and num_runners > 1:
        raise ConfigError(
            f"`--runners` {num_runners} would give {gpu} to each of them; one runner serves all GPUs of a host",
            param="runners",
        )
