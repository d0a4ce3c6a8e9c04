"""The goals of the series: how close a mode of cold starts comes to cached adapters and to the best mode."""

from punica_serve.bench.coldstart_series.series_catalogue import Series
from punica_serve.bench.coldstart_series.series_rows import CACHED, ON_DEMAND
from punica_serve.bench.coldstart_series.series_settings import RowResult, SeriesMeasured, SeriesSettings
from punica_serve.bench.coldstart_series.series_times import FIRST_TOKEN, LATENCY, MEASURES, Measure, overheads
from punica_serve.bench.goals import Goal
from punica_serve.bench.reference_figures import goals

#: The rank that the goal on all seven projections is for.
_RANK_ON_ALL = 64
#: Where on_demand's latency is less than so many times cached's, a load is too short to be worth hiding.
_WORTH_HIDING = 1.5


def goals_of(settings: SeriesSettings, measured: SeriesMeasured) -> list[Goal]:
    """The goals of all series; a figure is None where this run does not have it."""
    return [goal for series in settings.series for goal in _of_series(series, settings, measured)]


def _of_series(series: Series, settings: SeriesSettings, measured: SeriesMeasured) -> list[Goal]:
    rows = {result.row.name: result for result in measured.of(series)}
    modes = [result for result in rows.values() if result.row.name not in (CACHED, ON_DEMAND)]
    if not modes:
        return []
    judged, fixed = modes[-1], modes[:-1]
    figures: dict[str, float | None] = {
        "first_token_behind_best": _behind_best(FIRST_TOKEN, judged, fixed),
        "latency_behind_best": _behind_best(LATENCY, judged, fixed),
        "on_demand_over": _on_demand_over(judged, rows),
    }
    if settings.projections == "qkv" and not (measured.link and measured.link.is_emulated):
        over = overheads(judged, measured)
        figures.update({measure.key: over[measure.key] for measure in MEASURES})
    if settings.projections == "all" and series.rank == _RANK_ON_ALL:
        figures["first_token_beyond_copy"] = _beyond_copy(judged, rows.get(CACHED), measured)
    bounds = goals().coldstart_series
    load = f"{series.name}, {judged.row.name}"
    return [Goal(bounds[key], figure, load) for key, figure in figures.items()]


def _behind_best(measure: Measure, judged: RowResult, fixed: list[RowResult]) -> float | None:
    if not fixed:
        return None
    return measure.mean_ms(judged) / min(measure.mean_ms(result) for result in fixed)


def _on_demand_over(judged: RowResult, rows: dict[str, RowResult]) -> float | None:
    if CACHED not in rows or ON_DEMAND not in rows:
        return None
    on_demand_ms = LATENCY.mean_ms(rows[ON_DEMAND])
    if on_demand_ms < _WORTH_HIDING * LATENCY.mean_ms(rows[CACHED]):
        return None
    return on_demand_ms / LATENCY.mean_ms(judged)


def _beyond_copy(judged: RowResult, cached: RowResult | None, measured: SeriesMeasured) -> float | None:
    """% over cached, without the time that a copy takes longer than a cached request's first token."""
    if cached is None or measured.link is None:
        return None
    load = next(load for load in measured.link.loads if load.rank == judged.series.rank)
    warm_ms = FIRST_TOKEN.mean_ms(cached)
    unhidden_ms = max(0.0, load.seconds * 1e3 - warm_ms)
    return 100 * ((FIRST_TOKEN.mean_ms(judged) - unhidden_ms) / warm_ms - 1)
