"""Simulations in parallel: one process for each core, since a simulation keeps one core busy."""

import multiprocessing
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, wait
from typing import Protocol, TypeVar

from punica_scheduler.simulator.run import Result, simulate
from punica_serve.config.cluster import ClusterConfig
from punica_serve.process.usable_cores import usable_cores
from punica_serve.simulation.arrivals import Arrivals

#: How often the progress of other processes is read.
_POLL_S = 0.2

_Key = TypeVar("_Key")


class _Progress(Protocol):
    """Simulated seconds of each simulation."""

    def __getitem__(self, number: int, /) -> float: ...

    def __setitem__(self, number: int, now_s: float, /) -> None: ...


def simulate_all(
    configs: Mapping[_Key, ClusterConfig],
    arrivals: Arrivals,
    on_progress: Callable[[_Key, float], None],
    num_processes: int | None = None,
) -> dict[_Key, Result]:
    """The same arrivals on each cluster, in ``num_processes``, by default one for each core.

    ``on_progress`` gets the simulated seconds now and then. Raises the first error of ``simulate``.
    """
    num_processes = min(len(configs), num_processes or usable_cores())
    if num_processes == 1:
        return {key: simulate(config, arrivals, _reporting(on_progress, key)) for key, config in configs.items()}
    context = multiprocessing.get_context("spawn")
    progress = context.Array("d", len(configs), lock=False)

    def tell() -> None:
        for number, key in enumerate(configs):
            on_progress(key, progress[number])

    pool = ProcessPoolExecutor(num_processes, context, _init, (arrivals, progress))
    try:
        futures = [pool.submit(_simulate_one, number, config) for number, config in enumerate(configs.values())]
        _watch(futures, tell)
        return dict(zip(configs, (future.result() for future in futures), strict=True))
    finally:
        pool.shutdown(cancel_futures=True)


def _reporting(on_progress: Callable[[_Key, float], None], key: _Key) -> Callable[[float], None]:
    return lambda now_s: on_progress(key, now_s)


def _watch(futures: list[Future[Result]], tell: Callable[[], None]) -> None:
    """Reports the progress until all are done or one has failed."""
    pending = set(futures)
    while pending:
        done, pending = wait(pending, _POLL_S)
        tell()
        for future in done:
            future.result()


# ------------------------------------------------------------ in a process of the pool


#: Set once by ``_init``; every simulation of the process reads it.
_shared: tuple[Arrivals, _Progress]


def _init(arrivals: Arrivals, progress: _Progress) -> None:
    global _shared
    _shared = arrivals, progress


def _simulate_one(number: int, config: ClusterConfig) -> Result:
    arrivals, progress = _shared

    def on_progress(now_s: float) -> None:
        progress[number] = now_s

    return simulate(config, arrivals, on_progress)
