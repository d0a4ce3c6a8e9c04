"""Looks at a running cluster once in a while, and makes a Timeline of what it sees."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Never

import httpx
import numpy as np

from punica_serve.simulation.timeline import Timeline

#: Real seconds between two looks.
LOOK_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class Look:
    """The cluster at one moment."""

    time_s: float
    #: GPU UUID -> requests in its newest step; 0 when idle.
    batch_sizes: Mapping[str, int]
    queue_length: int
    #: Of all schedulers since the first look.
    counters: Mapping[str, int]


class _Counters:
    """What the scheduler counts, across its lives: each begins with nothing."""

    def __init__(self) -> None:
        self._incarnation = 0
        self._newest: Mapping[str, int] = {}
        #: Of the lives before.
        self._before: Counter[str] = Counter()

    def take(self, incarnation: int, counters: Mapping[str, int]) -> Mapping[str, int]:
        if incarnation != self._incarnation:
            self._before.update(self._newest)
            self._incarnation = incarnation
        self._newest = counters
        return {name: count + self._before[name] for name, count in counters.items()}


async def keep_looking(client: httpx.AsyncClient, now_s: Callable[[], float], looks: list[Look]) -> Never:
    """Adds to ``looks``. A frontend that is too busy to answer, or has no scheduler, is looked at again."""
    counters = _Counters()
    while True:
        with suppress(httpx.HTTPError, ValueError, KeyError):
            cluster = await _get(client)
            looks.append(_look(now_s(), cluster, counters))
        await asyncio.sleep(LOOK_INTERVAL_S)


async def _get(client: httpx.AsyncClient) -> dict[str, Any]:
    answer = await client.get("/v1/cluster")
    answer.raise_for_status()
    cluster: dict[str, Any] = answer.json()
    return cluster


def _look(time_s: float, cluster: dict[str, Any], counters: _Counters) -> Look:
    batch_sizes = {gpu["gpu"]["uuid"]: gpu["batch_size"] for gpu in cluster["gpus"]}
    counted = counters.take(cluster["incarnation"], cluster["counters"])
    return Look(time_s, batch_sizes, cluster["queue_length"], counted)


def timeline_of(looks: Sequence[Look], *, interval_s: float, max_batch_size: int) -> Timeline:
    """Means over intervals of what was seen; rates are the counters' slopes, straight between two looks."""
    times_s = [look.time_s for look in looks]
    num_intervals = max(1, int(times_s[-1] / interval_s))
    bounds_s = np.arange(num_intervals + 1) * interval_s

    def rate(counter: str) -> list[float]:
        counts = np.interp(bounds_s, times_s, [look.counters[counter] for look in looks])
        rates: list[float] = (np.diff(counts) / interval_s).tolist()
        return rates

    seen: list[list[Look]] = [[] for _ in range(num_intervals)]
    for look in looks:
        if 0 <= look.time_s < num_intervals * interval_s:
            seen[int(look.time_s / interval_s)].append(look)
    uuids = sorted({uuid for look in looks for uuid in look.batch_sizes})
    return Timeline(
        interval_s=interval_s,
        requests_per_s=rate("arrived"),
        tokens_per_s=rate("tokens"),
        queue_length=[mine[-1].queue_length if mine else 0 for mine in seen],
        batch_sizes={
            uuid: [_mean([look.batch_sizes.get(uuid, 0) for look in mine]) for mine in seen] for uuid in uuids
        },
        max_batch_size=max_batch_size,
    )


def _mean(numbers: Sequence[int]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0
