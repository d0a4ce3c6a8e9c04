"""`punica-serve simulate CONFIG --live URL`: the same arrivals against a running cluster, beside the simulation."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from punica_serve.adapters.dummy import dummy_name
from punica_serve.cli.simulate_failures import EXIT_FAILED, print_failures
from punica_serve.cli.simulate_files import write_files
from punica_serve.counted import counted
from punica_serve.errors import ClusterUnavailable
from punica_serve.simulation.worker import SIMULATED_DEVICE

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from punica_serve.config import ClusterConfig
    from punica_serve.replay.client import ReplayedStream
    from punica_serve.replay.comparison import Figures
    from punica_serve.replay.found import FoundGpu, GpuSize
    from punica_serve.replay.watch import Look
    from punica_serve.simulation.arrivals import Arrivals


def look_first(config: "ClusterConfig", urls: Sequence[str], key: str | None) -> "list[FoundGpu]":
    """The cluster's GPUs, once each of its frontends serves what the requests ask for.

    Raises ConfigError, Unauthorized and ClusterUnavailable.
    """
    return asyncio.run(_look_first(config, urls, key))


async def _look_first(config: "ClusterConfig", urls: Sequence[str], key: str | None) -> "list[FoundGpu]":
    from punica_serve.replay.found import check_models, cluster_client, found_gpus

    adapters = [dummy_name(number) for number in range(config.dummy_adapters.count)]
    for url in urls:
        async with cluster_client(url, key) as client:
            await check_models(client, config.engine.served_name, adapters)
    async with cluster_client(urls[0], key) as client:
        return await found_gpus(client)


def compare_live(
    config: "ClusterConfig",
    gpus: "Sequence[FoundGpu]",
    arrivals: "Arrivals",
    urls: Sequence[str],
    key: str | None,
    *,
    name: str,
    out: Path,
    console: "Console",
) -> None:
    """Simulates the cluster as it is found, replays the arrivals against it, and leaves picture, tables and summary.

    Raises ConfigError and ClusterUnavailable; typer.Exit(1), the files written, where requests failed.
    """
    from punica_scheduler.simulator.run import simulate
    from punica_serve.replay.comparison import failures_of, figures_of, live_figures
    from punica_serve.replay.watch import timeline_of

    console.print(f"the cluster has {counted(len(gpus), 'GPU')}", highlight=False)
    sizes, speed = [gpu.size for gpu in gpus], speed_of(config, gpus)
    predicted = simulate(as_found(config, sizes, speed), arrivals)
    streams, looks = _replay(arrivals, urls, key, speed, console)
    interval_s, max_batch_size = config.simulation.interval_s, max(size.max_batch_size for size in sizes)
    timeline = timeline_of(looks, interval_s=interval_s, max_batch_size=max_batch_size)
    summary = predicted.summary
    simulated = figures_of(
        predicted.timeline,
        {"migrations": summary.migrations, "consolidations": summary.consolidations},
        first_token_p50_s=summary.first_token_p50_s,
        first_token_p99_s=summary.first_token_p99_s,
        num_failed=summary.num_failed,
    )
    live = live_figures(timeline, looks, streams)
    console.print(_table(live, simulated))
    print_failures("live", failures_of(streams), console)
    print_failures("simulated", predicted.failures, console)
    timelines = {"live": timeline, "simulated": predicted.timeline}
    tables = {f"{name}-{key}": timeline for key, timeline in timelines.items()}
    write_files({"live": live, "simulated": simulated}, tables, timelines, out / f"{name}-live", name, console)
    if live.num_failed:
        raise typer.Exit(EXIT_FAILED)


def speed_of(config: "ClusterConfig", gpus: "Sequence[FoundGpu]") -> float:
    """Seconds of these GPUs in a real one: those that are not simulated take the time they take."""
    return config.simulation.speed if all(gpu.device == SIMULATED_DEVICE for gpu in gpus) else 1.0


def as_found(config: "ClusterConfig", sizes: "Sequence[GpuSize]", speed: float) -> "ClusterConfig":
    """The config of a simulation whose GPUs are as many and as large as those of the running cluster.

    The running scheduler's clock is real, the simulated one's counts ``speed`` of its seconds in one.
    """
    size = min(sizes, key=lambda size: size.num_kv_pages)
    consolidation = config.scheduler.consolidation
    scaled = {
        "interval_s": consolidation.interval_s * speed,
        "prefill_tokens_per_s": round(consolidation.prefill_tokens_per_s / speed),
        "idle_s": consolidation.idle_s * speed,
    }
    scheduler = config.scheduler.model_copy(update={"consolidation": consolidation.model_copy(update=scaled)})
    return config.model_copy(
        update={
            "engine": config.engine.model_copy(update=asdict(size)),
            "runner": config.runner.model_copy(update={"devices": (SIMULATED_DEVICE,) * len(sizes)}),
            "simulation": config.simulation.model_copy(update={"num_runners": 1}),
            "scheduler": scheduler,
        }
    )


def _replay(
    arrivals: "Arrivals", urls: Sequence[str], key: str | None, speed: float, console: "Console"
) -> "tuple[list[ReplayedStream], list[Look]]":
    from rich.progress import Progress

    from punica_serve.replay.client import Replay, connected
    from punica_serve.replay.found import cluster_client
    from punica_serve.replay.watch import LOOK_INTERVAL_S, keep_looking

    async def run(on_progress: Callable[[float], None]) -> "tuple[list[ReplayedStream], list[Look]]":
        async with connected(urls, key) as sockets, cluster_client(urls[0], key) as client:
            replay = Replay(arrivals, speed=speed)
            looks: list[Look] = []
            looking = asyncio.create_task(keep_looking(client, replay.now_s, looks))
            try:
                await replay.run(sockets, on_progress)
                await asyncio.sleep(2 * LOOK_INTERVAL_S)  # to see the last tokens counted
            finally:
                looking.cancel()
        if not looks:
            raise ClusterUnavailable(f"the frontend at {urls[0]} has told nothing of the cluster meanwhile")
        return replay.streams, looks

    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("replaying", total=arrivals.times_s[-1])
        return asyncio.run(run(lambda now_s: progress.update(task, completed=now_s)))


def _table(live: "Figures", simulated: "Figures") -> "Table":
    from rich.table import Table

    from punica_serve.replay.comparison import ROWS, ratio

    table = Table("", "live", "simulated", "live / simulated")
    for column in table.columns[1:]:
        column.justify = "right"
    for field, (title, form) in ROWS.items():
        seen, predicted = getattr(live, field), getattr(simulated, field)
        table.add_row(title, format(seen, form), format(predicted, form), ratio(seen, predicted))
    return table
