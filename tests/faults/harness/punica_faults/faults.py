"""Faults, by name. A fault is over when its coroutine is: killed processes come back by themselves."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from punica_faults.cluster import DRAIN_TIMEOUT_S, FRONTENDS, RUNNERS, Cluster
from waits import DEADLINE_S, until

#: Longer than any peer bears silence, and shorter.
LONG_DROP_S = 6.0
SHORT_DROP_S = 0.5
DELAY_S = 0.5
DELAYED_FOR_S = 2.0


@dataclass(frozen=True)
class Fault:
    name: str
    inject: Callable[[Cluster], Awaitable[None]]
    #: Frontends whose clients lose their streams.
    dooms: tuple[str, ...] = ()


def _worker(cluster: Cluster, runner: str, index: int, signum: int) -> None:
    pid = cluster.workers(runner).get(index)
    if pid is not None:
        os.kill(pid, signum)


async def _new_process(cluster: Cluster, name: str, old_pid: int, *, deadline_s: float = DEADLINE_S) -> None:
    process = cluster.processes[name]
    await until(lambda: process.pid not in (0, old_pid), f"{name} starts again", deadline_s=deadline_s)


# ---------------------------------------------------------------- kills


def kill_worker(runner: str = RUNNERS[0], index: int = 0) -> Fault:
    async def inject(cluster: Cluster) -> None:
        _worker(cluster, runner, index, signal.SIGKILL)

    return Fault(f"kill worker {index} of {runner}", inject)


def kill(*names: str) -> Fault:
    async def inject(cluster: Cluster) -> None:
        for name in names:
            cluster.processes[name].kill()

    return Fault(f"kill {' and '.join(names)}", inject, tuple(name for name in names if name in FRONTENDS))


def kill_all_workers() -> Fault:
    async def inject(cluster: Cluster) -> None:
        for runner in RUNNERS:
            for index in cluster.workers(runner):
                _worker(cluster, runner, index, signal.SIGKILL)

    return Fault("kill all workers", inject)


def kill_worker_runner_and_scheduler() -> Fault:
    async def inject(cluster: Cluster) -> None:
        _worker(cluster, RUNNERS[0], 1, signal.SIGKILL)
        cluster.processes[RUNNERS[1]].kill()
        cluster.processes["scheduler"].kill()

    return Fault("kill a worker, the other runner and scheduler at once", inject)


def kill_again(name: str, *, times: int = 2) -> Fault:
    """Kills a process, and each life that follows as soon as it has begun."""

    async def inject(cluster: Cluster) -> None:
        for _ in range(times):
            old_pid = cluster.processes[name].pid
            cluster.processes[name].kill()
            await _new_process(cluster, name, old_pid)
        cluster.processes[name].kill()

    return Fault(f"kill {name}, and again {times} times while it recovers", inject)


def kill_worker_again(runner: str = RUNNERS[0], index: int = 0) -> Fault:
    """While it loads, and once more when it has joined."""

    async def inject(cluster: Cluster) -> None:
        old_pid = cluster.workers(runner)[index]
        _worker(cluster, runner, index, signal.SIGKILL)
        await until(lambda: cluster.workers(runner).get(index, old_pid) != old_pid, "the worker starts again")
        _worker(cluster, runner, index, signal.SIGKILL)
        await cluster.until_whole()
        _worker(cluster, runner, index, signal.SIGKILL)

    return Fault(f"kill worker {index} of {runner}, again while it loads, again when it is back", inject)


def terminate(name: str) -> Fault:
    """SIGTERM, as on a platform that takes a host back: no fault, so not even a frontend's clients lose anything."""

    async def inject(cluster: Cluster) -> None:
        old_pid = cluster.processes[name].pid
        cluster.processes[name].terminate()
        await _new_process(cluster, name, old_pid, deadline_s=DRAIN_TIMEOUT_S + DEADLINE_S)

    return Fault(f"terminate {name}", inject)


# ---------------------------------------------------------------- freezes


def freeze_worker(runner: str = RUNNERS[0], index: int = 1) -> Fault:
    async def inject(cluster: Cluster) -> None:
        _worker(cluster, runner, index, signal.SIGSTOP)

    return Fault(f"freeze worker {index} of {runner}", inject)


def freeze(*names: str) -> Fault:
    async def inject(cluster: Cluster) -> None:
        for name in names:
            cluster.processes[name].freeze()

    return Fault(f"freeze {' and '.join(names)}", inject, tuple(name for name in names if name in FRONTENDS))


# ---------------------------------------------------------------- links


def cut(*names: str) -> Fault:
    """Until the scheduler has seen it."""

    async def inject(cluster: Cluster) -> None:
        await asyncio.gather(*(cluster.links[name].cut() for name in names))
        await asyncio.sleep(1.0)
        for name in names:
            cluster.links[name].restore()

    return Fault(f"cut {_links(names)}", inject)


def drop(*names: str, for_s: float) -> Fault:
    async def inject(cluster: Cluster) -> None:
        for name in names:
            cluster.links[name].drop()
        await asyncio.sleep(for_s)
        for name in names:
            cluster.links[name].restore()

    return Fault(f"drop everything on {_links(names)} for {for_s:g} s", inject)


def delay(*names: str) -> Fault:
    async def inject(cluster: Cluster) -> None:
        for name in names:
            cluster.links[name].delay(DELAY_S)
        await asyncio.sleep(DELAYED_FOR_S)
        for name in names:
            cluster.links[name].restore()

    return Fault(f"delay {_links(names)} by {DELAY_S:g} s", inject)


def _links(names: tuple[str, ...]) -> str:
    return "all links" if len(names) == len(RUNNERS) + len(FRONTENDS) else f"the link of {' and '.join(names)}"
