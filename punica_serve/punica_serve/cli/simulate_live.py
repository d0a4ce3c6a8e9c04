"""`punica-serve simulate CONFIG --live URL`: the same arrivals against a running cluster, to compare with the
simulation.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from punica_serve.adapters.dummy import dummy_name
from punica_serve.cli.simulate_failures import exit_if_failed, print_failures
from punica_serve.cli.simulate_files import write_each, write_files
from punica_serve.cli.text_tables import figures_table
from punica_serve.errors import ClusterUnavailable
from punica_serve.numbers import counted
from punica_serve.protocol import SIMULATED_DEVICE

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from punica_serve.config.cluster import ClusterConfig
    from punica_serve.protocol import Slo
    from punica_serve.simulation.arrivals import Arrivals
    from punica_serve.simulation.live.client import ReplayedStream
    from punica_serve.simulation.live.cluster_check import GpuSize, LiveGpu
    from punica_serve.simulation.live.comparison import LiveFigures
    from punica_serve.simulation.live.watch import Sample


def look_first(config: "ClusterConfig", urls: Sequence[str], key: str | None) -> "list[LiveGpu]":
    """The cluster's GPUs, after checking that every frontend serves the models that the requests use.

    Raises ConfigError, Unauthorized and ClusterUnavailable.
    """
    return asyncio.run(_look_first(config, urls, key))


async def _look_first(config: "ClusterConfig", urls: Sequence[str], key: str | None) -> "list[LiveGpu]":
    from punica_serve.simulation.live.cluster_check import check_models, cluster_client, found_gpus

    adapters = [dummy_name(number) for number in range(config.dummy_adapters.count)]
    for url in urls:
        async with cluster_client(url, key) as client:
            await check_models(client, config.engine.served_name, adapters)
    async with cluster_client(urls[0], key) as client:
        return await found_gpus(client)


def compare_live(
    config: "ClusterConfig",
    gpus: "Sequence[LiveGpu]",
    arrivals: "Arrivals",
    urls: Sequence[str],
    key: str | None,
    *,
    name: str,
    out: Path,
    console: "Console",
) -> None:
    """Simulates the cluster as found, replays the arrivals against it, and writes picture, tables and summary.

    Raises ConfigError and ClusterUnavailable; typer.Exit(1), after writing the files, if requests failed.
    """
    from punica_scheduler.simulator.comparison_pictures import draw_times
    from punica_scheduler.simulator.run import simulate, slos_of
    from punica_serve.simulation.live.comparison import failures_of, figures_of, live_figures, times_of
    from punica_serve.simulation.live.watch import timeline_of

    console.print(f"the cluster has {counted(len(gpus), 'GPU')}", highlight=False)
    sizes, speed = [gpu.size for gpu in gpus], speed_of(config, gpus)
    found = as_found(config, sizes, speed)
    slos = slos_of(found, arrivals)
    predicted = simulate(found, arrivals)
    streams, samples = _replay(arrivals, slos, urls, key, speed, console)
    interval_s, max_batch_size = config.simulation.interval_s, max(size.max_batch_size for size in sizes)
    timeline = timeline_of(samples, interval_s=interval_s, max_batch_size=max_batch_size)
    summary = predicted.summary
    counters = {"migrations": summary.migrations, "consolidations": summary.consolidations}
    simulated = figures_of(predicted.timeline, counters, predicted.times, slos, num_failed=summary.num_failed)
    live = live_figures(timeline, samples, streams, slos)
    console.print(_table(live, simulated))
    print_failures("live", failures_of(streams), console)
    print_failures("simulated", predicted.failures, console)
    timelines = {"live": timeline, "simulated": predicted.timeline}
    tables = {f"{name}-{key}": timeline for key, timeline in timelines.items()}
    write_files({"live": live, "simulated": simulated}, tables, timelines, out / f"{name}-live", name, console)
    times = {"live": times_of(streams), "simulated": predicted.times}
    write_each({out / f"{name}-live-times.png": partial(draw_times, times, title=name)}, console)
    exit_if_failed(bool(live.num_failed))


def speed_of(config: "ClusterConfig", gpus: "Sequence[LiveGpu]") -> float:
    """Simulated seconds per real second; 1 if the GPUs are not simulated."""
    return config.simulation.speed if all(gpu.device == SIMULATED_DEVICE for gpu in gpus) else 1.0


def as_found(config: "ClusterConfig", sizes: "Sequence[GpuSize]", speed: float) -> "ClusterConfig":
    """The config of a simulation with the same number and size of GPUs as the running cluster.

    The running scheduler's clock is real, so its intervals are ``speed`` times as long in simulated time.
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
    arrivals: "Arrivals", slos: "Sequence[Slo]", urls: Sequence[str], key: str | None, speed: float, console: "Console"
) -> "tuple[list[ReplayedStream], list[Sample]]":
    from punica_serve.cli.progress_lines import shown_progress
    from punica_serve.simulation.live.client import Replay, connected
    from punica_serve.simulation.live.cluster_check import cluster_client
    from punica_serve.simulation.live.watch import SAMPLE_INTERVAL_S, keep_sampling

    async def run(on_progress: Callable[[float], None]) -> "tuple[list[ReplayedStream], list[Sample]]":
        async with connected(urls, key) as sockets, cluster_client(urls[0], key) as client:
            replay = Replay(arrivals, slos, speed=speed)
            samples: list[Sample] = []
            sampling = asyncio.create_task(keep_sampling(client, replay.now_s, samples))
            try:
                await replay.run(sockets, on_progress)
                await asyncio.sleep(2 * SAMPLE_INTERVAL_S)  # until the last tokens have been counted
            finally:
                sampling.cancel()
        if not samples:
            raise ClusterUnavailable(
                f"the frontend at {urls[0]} has not reported on the cluster meanwhile; check its log and try again"
            )
        return replay.streams, samples

    with shown_progress(console) as progress:
        task = progress.add_task("replaying", total=arrivals.times_s[-1])
        return asyncio.run(run(lambda now_s: progress.update(task, completed=now_s)))


def _table(live: "LiveFigures", simulated: "LiveFigures") -> "Table":
    from punica_serve.simulation.live.comparison import ROWS, ratio

    rows = []
    for field, (title, form) in ROWS.items():
        seen, predicted = getattr(live, field), getattr(simulated, field)
        if seen is None or predicted is None:  # nothing was promised
            continue
        rows.append((title, (format(seen, form), format(predicted, form), ratio(seen, predicted))))
    return figures_table(("live", "simulated", "live / simulated"), rows)
