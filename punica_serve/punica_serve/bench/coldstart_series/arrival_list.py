"""The arrivals of a series: one fixed list, drawn by a seed, which all of its rows share."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from punica_serve.bench.coldstart_series.series_catalogue import Series
from punica_serve.simulation.azure_trace import Shares
from punica_serve.workload import RequestLength, alpaca_like_lengths, maf_like

_SEED = 20240120

#: Requests for each second of a series without a rate: more than a device of today answers.
_MOST_PER_S = 200


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a series."""

    #: Seconds after the start; 0 in a series without a rate.
    due_s: float
    length: RequestLength
    #: Number of its adapter.
    adapter: int


def arrival_list(series: Series, seconds: float, shares: Shares | None = None) -> tuple[Arrival, ...]:
    """The arrivals of so many seconds, at least one.

    ``shares`` replace those of `maf_like` in serverless series; their last minute is followed by the first.
    """
    rng = np.random.default_rng(_SEED)
    due_s = _due_times(series, seconds, rng)
    lengths = alpaca_like_lengths(len(due_s), _SEED)
    adapters = _adapters(series, due_s, shares, rng)
    return tuple(map(Arrival, due_s, lengths, adapters))


def _due_times(series: Series, seconds: float, rng: np.random.Generator) -> list[float]:
    if series.rate_per_s is None:
        return [0.0] * max(series.num_in_flight, round(seconds * _MOST_PER_S))
    due_s: list[float] = [float(rng.exponential(1 / series.rate_per_s))]
    while due_s[-1] < seconds:
        due_s.append(due_s[-1] + float(rng.exponential(1 / series.rate_per_s)))
    return due_s[:-1] or [0.0]


def _adapters(series: Series, due_s: Sequence[float], shares: Shares | None, rng: np.random.Generator) -> list[int]:
    if series.num_adapters is None:
        return list(range(len(due_s)))
    minutes = shares or [maf_like(series.num_adapters, _SEED)]
    return [int(rng.choice(series.num_adapters, p=minutes[int(due // 60) % len(minutes)])) for due in due_s]
