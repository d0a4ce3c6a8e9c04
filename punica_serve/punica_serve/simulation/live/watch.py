"""Polls a running cluster, and makes a Timeline of the samples."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Never

import httpx
import numpy as np

from punica_serve.numbers import natural_order
from punica_serve.simulation.timeline import Timeline

#: Real seconds between two samples.
SAMPLE_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of the cluster."""

    time_s: float
    #: GPU name -> mean requests of its steps of the last second; 0 if it ran none.
    batch_sizes: Mapping[str, float]
    queue_length: int
    #: Counters summed over all schedulers since the first sample.
    counters: Mapping[str, int]


class _Counters:
    """The scheduler's counters across its restarts, each of which sets them to 0."""

    def __init__(self) -> None:
        self._incarnation = 0
        self._newest: Mapping[str, int] = {}
        #: Sums of the earlier incarnations.
        self._before: Counter[str] = Counter()

    def take(self, incarnation: int, counters: Mapping[str, int]) -> Mapping[str, int]:
        if incarnation != self._incarnation:
            self._before.update(self._newest)
            self._incarnation = incarnation
        self._newest = counters
        return {name: count + self._before[name] for name, count in counters.items()}


async def keep_sampling(client: httpx.AsyncClient, now_s: Callable[[], float], samples: list[Sample]) -> Never:
    """Adds to ``samples``. If a frontend is too busy to answer or has no scheduler, it polls again."""
    counters = _Counters()
    while True:
        with suppress(httpx.HTTPError, ValueError, KeyError):
            cluster = await _get(client)
            samples.append(_sample(now_s(), cluster, counters))
        await asyncio.sleep(SAMPLE_INTERVAL_S)


async def _get(client: httpx.AsyncClient) -> dict[str, Any]:
    answer = await client.get("/v1/cluster")
    answer.raise_for_status()
    cluster: dict[str, Any] = answer.json()
    return cluster


def _sample(time_s: float, cluster: dict[str, Any], counters: _Counters) -> Sample:
    batch_sizes = {gpu["gpu"]["name"]: gpu["batch_size_mean"] for gpu in cluster["gpus"]}
    counted = counters.take(cluster["incarnation"], cluster["counters"])
    return Sample(time_s, batch_sizes, cluster["queue_length"], counted)


def timeline_of(samples: Sequence[Sample], *, interval_s: float, max_batch_size: int) -> Timeline:
    """Means of the samples over intervals. Rates are differences of counters, interpolated between samples."""
    times_s = [sample.time_s for sample in samples]
    num_intervals = max(1, int(times_s[-1] / interval_s))
    bounds_s = np.arange(num_intervals + 1) * interval_s

    def rate(counter: str) -> list[float]:
        counts = np.interp(bounds_s, times_s, [sample.counters[counter] for sample in samples])
        rates: list[float] = (np.diff(counts) / interval_s).tolist()
        return rates

    seen: list[list[Sample]] = [[] for _ in range(num_intervals)]
    for sample in samples:
        if 0 <= sample.time_s < num_intervals * interval_s:
            seen[int(sample.time_s / interval_s)].append(sample)
    gpus = sorted({gpu for sample in samples for gpu in sample.batch_sizes}, key=natural_order)
    return Timeline(
        interval_s=interval_s,
        requests_per_s=rate("arrived"),
        tokens_per_s=rate("tokens"),
        queue_length=[mine[-1].queue_length if mine else 0 for mine in seen],
        batch_sizes={
            gpu: [_mean([sample.batch_sizes.get(gpu, 0) for sample in mine]) for mine in seen] for gpu in gpus
        },
        max_batch_size=max_batch_size,
    )


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0
