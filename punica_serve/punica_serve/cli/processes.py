"""`punica-serve scheduler`, `runner` and `frontend`: one process each, for clusters of several machines."""

import os
import socket
from typing import TYPE_CHECKING, Annotated

import typer

from punica_serve.cli.options import (
    DEFAULT_CONFIG,
    ConfigOption,
    HostOption,
    LogFormatOption,
    LogLevelOption,
    NoAuthOption,
    PortOption,
    SchedulerUrlOption,
)
from punica_serve.links import addresses
from punica_serve.process import run
from punica_serve.process.logs import LogLevel

if TYPE_CHECKING:
    from punica_serve.config.cluster import ClusterConfig


def scheduler(
    config: ConfigOption = DEFAULT_CONFIG,
    port: PortOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = None,
) -> None:
    """Run the scheduler, which places every request of the cluster."""
    from punica_scheduler import server
    from punica_serve.config.cluster import load_config
    from punica_serve.process.memory_tuning import tune_gc

    cluster = load_config(config).with_log_format(log_format)
    if port is not None:
        cluster = cluster.model_copy(update={"scheduler": cluster.scheduler.model_copy(update={"port": port})})
    tune_gc()
    serve = server.serve(cluster, run.cluster_token())
    run.run_process("scheduler", serve, log_level=log_level, log_format=cluster.log.format)


def runner(
    config: ConfigOption = DEFAULT_CONFIG,
    runner_id: Annotated[
        str | None, typer.Option(help="Unique name in the cluster; the host's name by default.")
    ] = None,
    scheduler_url: SchedulerUrlOption = None,
    host_index: Annotated[
        int,
        typer.Option(min=0, help="This host's number among `runner.hosts`; all but 0 lend their devices to host 0."),
    ] = 0,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = None,
) -> None:
    """Run this host's runner, with a worker for each of its devices. SIGTERM moves its requests elsewhere first."""
    from punica_runner import supervisor
    from punica_serve.config.cluster import load_config

    cluster = load_config(config).with_log_format(log_format)
    if host_index:
        from punica_runner import joined_host

        join = joined_host.serve(cluster, run.cluster_token(), host=host_index)
        run.run_process(f"host {host_index}", join, log_level=log_level, log_format=cluster.log.format)
        return
    drain = run.Drain(cluster.runner.drain_timeout_s)
    serve = supervisor.serve(
        cluster,
        run.cluster_token(),
        runner_id=runner_id or socket.gethostname(),
        scheduler_url=scheduler_url or _default_scheduler_url(cluster),
        drain=drain,
    )
    run.run_process("runner", serve, log_level=log_level, log_format=cluster.log.format, drain=drain)


def frontend(
    config: ConfigOption = DEFAULT_CONFIG,
    scheduler_url: SchedulerUrlOption = None,
    host: HostOption = None,
    port: PortOption = None,
    insecure_no_auth: NoAuthOption = False,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = None,
) -> None:
    """Run a frontend: the HTTP and websocket API."""
    import punica_frontend.main
    from punica_serve.config.cluster import load_config
    from punica_serve.registry.checked_adapters import CheckedAdapters

    cluster = load_config(config).with_log_format(log_format).without_auth(insecure_no_auth)
    drain = run.Drain(cluster.frontend.drain_timeout_s)
    serve = punica_frontend.main.serve(
        cluster,
        run.cluster_token(),
        scheduler_url=scheduler_url or _default_scheduler_url(cluster),
        host=host,
        port=port,
        drain=drain,
        checked=CheckedAdapters.from_environment(os.environ),
    )
    run.run_process("frontend", serve, log_level=log_level, log_format=cluster.log.format, drain=drain)


def _default_scheduler_url(cluster: "ClusterConfig") -> str:
    scheduler = cluster.scheduler
    return addresses.scheduler_url(scheduler.host, scheduler.port, is_tls=cluster.tls is not None)
