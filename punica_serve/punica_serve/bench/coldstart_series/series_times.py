"""The three times of a request that the series compare, and how much they exceed those of cached adapters."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from punica_serve.bench.coldstart_series.series_replay import SeriesTimes
from punica_serve.bench.coldstart_series.series_rows import CACHED, ON_DEMAND
from punica_serve.bench.coldstart_series.series_settings import RowResult, SeriesMeasured


@dataclass(frozen=True, slots=True)
class Measure:
    """One of the times."""

    key: str
    title: str
    #: None if the request has no such time.
    time_s: Callable[[SeriesTimes], float | None]

    def of(self, result: RowResult) -> list[float]:
        """The times of a row, in seconds."""
        return [time_s for times in result.times if (time_s := self.time_s(times)) is not None]

    def mean_ms(self, result: RowResult) -> float:
        return 1e3 * statistics.fmean(self.of(result))


FIRST_TOKEN = Measure("first_token", "first token", lambda times: times.first_token_s)
PER_TOKEN = Measure("per_token", "per token", lambda times: times.per_token_s)
LATENCY = Measure("latency", "latency", lambda times: times.latency_s)

MEASURES = (FIRST_TOKEN, PER_TOKEN, LATENCY)


def overheads(result: RowResult, measured: SeriesMeasured) -> dict[str, float | None]:
    """% by which the row's means exceed those of `cached` in the same series, by measure; None without such a row."""
    cached = next((other for other in measured.of(result.series) if other.row.name == CACHED), None)
    return {measure.key: _overhead(measure, result, cached) for measure in MEASURES}


def _overhead(measure: Measure, result: RowResult, cached: RowResult | None) -> float | None:
    if cached is None or cached is result or not measure.of(result) or not measure.of(cached):
        return None
    return 100 * (measure.mean_ms(result) / measure.mean_ms(cached) - 1)


def cold_start_shares(measured: SeriesMeasured) -> dict[str, float]:
    """The share of its latency that a request spends in cold starts, by series (figure 3 of the paper, left).

    It is what `on_demand` takes longer than `cached`; series without both rows are left out.
    """
    shares = {}
    for result in measured.results:
        over = overheads(result, measured)[LATENCY.key]
        if result.row.name == ON_DEMAND and over is not None:
            shares[result.series.name] = over / (100 + over)
    return shares
