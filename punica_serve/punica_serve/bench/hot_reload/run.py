"""Runs `bench hot-reload`."""

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
from rich.progress import Progress

from punica_serve.bench.hot_reload.footprint import Footprint, footprint_of
from punica_serve.bench.hot_reload.load import INTEGER, RequestLoad, arrivals
from punica_serve.bench.hot_reload.reloads import CHANGING, Reloads
from punica_serve.bench.hot_reload.report import HotReloadMeasured, make_report
from punica_serve.bench.hot_reload.versions import VersionHistory
from punica_serve.bench.report import Report
from punica_serve.bench.running_cluster import RunningCluster, running_cluster
from punica_serve.config.cluster import load_config
from punica_serve.demo.asking import websocket
from punica_serve.demo.notations import NOTATIONS
from punica_serve.errors import ClusterUnavailable, ConfigError

#: Adapters that don't change.
_UNCHANGING = tuple(NOTATIONS)[:4]
_SEED = 1
#: Timeout of a registration; a slower cluster is considered dead.
_TIMEOUT_S = 120.0
#: Time limit for the last versions to disappear from GPUs, hosts and disks.
_SETTLING_S = 60.0
_POLL_S = 0.5
#: Reloads between two looks at the cluster, which cost it a request.
_LOOK_EVERY = 5


@dataclass(frozen=True, slots=True)
class HotReloadSettings:
    config: Path
    rate_per_s: float
    max_in_flight: int
    num_reloads: int
    reload_every_s: float


def run(settings: HotReloadSettings, progress: Progress) -> Report:
    """Raises ConfigError, ClusterUnavailable and RequestFailed."""
    _check_adapters(settings.config)
    task = progress.add_task("starting a cluster", total=settings.num_reloads)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_cluster(load_config(settings.config), Path(folder)) as cluster,
        _connection_errors(),
    ):
        progress.update(task, description="reloading")
        measured = asyncio.run(_measure(settings, cluster, lambda: progress.advance(task)))
    shown = {**asdict(settings), "config": str(settings.config)}
    return make_report(measured, shown, settings.rate_per_s)


def _check_adapters(config: Path) -> None:
    """Raises ConfigError."""
    lacking = [name for name in _UNCHANGING if name not in load_config(config).adapters]
    if lacking:
        message = (
            f"{config} lacks the demo's adapters {', '.join(lacking)}; use configs/demo.yaml, which has all of them"
        )
        raise ConfigError(message, param="config")


async def _measure(
    settings: HotReloadSettings, cluster: RunningCluster, tick: Callable[[], object]
) -> HotReloadMeasured:
    footprints: list[Footprint] = []

    def on_reload(number: int) -> None:
        tick()
        if number % _LOOK_EVERY == 0 or number == settings.num_reloads:
            footprints.append(footprint_of(cluster, number))

    client = httpx.AsyncClient(base_url=cluster.url, timeout=_TIMEOUT_S, trust_env=False)
    async with client, websocket(cluster.url) as ask:
        started_s = time.monotonic()

        def now_s() -> float:
            return time.monotonic() - started_s

        history = VersionHistory()
        histories = {name: VersionHistory.unchanging(NOTATIONS[name](INTEGER)) for name in _UNCHANGING}
        load = RequestLoad(ask, {**histories, CHANGING: history}, now_s, max_in_flight=settings.max_in_flight)
        reloads = Reloads(client, history, now_s)
        await reloads.reload()
        before = footprint_of(cluster, 0)
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run(arrivals(settings.rate_per_s, (*_UNCHANGING, CHANGING), _SEED)))
            await reloads.keep_reloading(settings.num_reloads, settings.reload_every_s, load, on_reload)
            load.stop()
        seconds = now_s()
        settled = await _settled(cluster, settings.num_reloads)
    return HotReloadMeasured(load.answers, load.wrong, reloads.done, (before, *footprints, settled), seconds)


async def _settled(cluster: RunningCluster, num_reloads: int) -> Footprint:
    """Waits until nothing is left of replaced versions, or the time limit is over."""
    deadline_s = time.monotonic() + _SETTLING_S
    while True:
        footprint = await asyncio.to_thread(footprint_of, cluster, num_reloads)
        if footprint.most_copies <= len(_UNCHANGING) + 1 or time.monotonic() > deadline_s:
            return footprint
        await asyncio.sleep(_POLL_S)


@contextmanager
def _connection_errors() -> Iterator[None]:
    """Turns a lost cluster into an error of one line."""
    try:
        yield
    except* (OSError, httpx.HTTPError) as group:
        raise ClusterUnavailable(f"the cluster went away: {group.exceptions[0]}") from group
