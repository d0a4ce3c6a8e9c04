"""Compares policies under the same arrivals: which is faster, and the distributions of their requests' times."""

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from punica_scheduler.simulator.run import Result
from punica_scheduler.simulator.summary import Summary
from punica_serve.simulation.attainment import RequestTimes

#: Points of a distribution: from the fastest request to the slowest, half a percent apart.
_SHARES = np.linspace(0.0, 1.0, 201)

_Seconds = npt.NDArray[np.float64]


def faster_by(summary: Summary, other: Summary) -> float:
    """The share by which the mean time per token is shorter than the other's; negative if it is longer."""
    return 1 - summary.time_per_token_mean_s / other.time_per_token_mean_s if other.time_per_token_mean_s else 0.0


def times_per_token_s(times: RequestTimes) -> _Seconds:
    """Times per token of the finished requests with more than one token, sorted."""
    times_s = times.time_per_token_s
    return np.sort(times_s[~np.isnan(times_s)])


def first_tokens_s(times: RequestTimes) -> _Seconds:
    """Times to first token of the finished requests, sorted."""
    return np.sort(times.first_token_s)


def write_cdfs(results: Mapping[str, Result], path: Path) -> Path:
    """Writes a row for each share of the requests, with the times that it stays within. Policies whose requests all
    failed have empty columns.
    """
    columns: dict[str, _Seconds] = {}
    for name, result in results.items():
        columns[f"{name}_time_per_token_s"] = times_per_token_s(result.times)
        columns[f"{name}_first_token_s"] = first_tokens_s(result.times)
    quantiles = [_quantiles(times_s) for times_s in columns.values()]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["share", *columns])
        for share, *row in zip(_SHARES.tolist(), *quantiles, strict=True):
            writer.writerow([f"{share:.3f}", *("" if value is None else f"{value:.6g}" for value in row)])
    return path


def _quantiles(times_s: _Seconds) -> list[float] | list[None]:
    if not len(times_s):
        return [None] * len(_SHARES)
    quantiles: list[float] = np.quantile(times_s, _SHARES).tolist()
    return quantiles
