"""Figure 15 of the paper: how much sooner than OnDemand a group's modes of cold starts answer."""

from punica_serve.bench.coldstart_series.series_catalogue import Series
from punica_serve.bench.coldstart_series.series_rows import CACHED, ON_DEMAND
from punica_serve.bench.coldstart_series.series_settings import SeriesMeasured, SeriesSettings
from punica_serve.bench.coldstart_series.series_times import LATENCY
from punica_serve.bench.goals import Goal
from punica_serve.bench.reference_figures import goals, peers
from punica_serve.bench.report import Column, TableData, Value
from punica_serve.bench.subject import Subject

_COLUMNS = (
    Column("series", "series"),
    Column("row", "row"),
    Column("latency_below", "latency below on_demand's, %", ",.1f"),
    Column("overhead_share", "overhead in latency over on_demand's", ",.2f"),
)


def comparison_table(subject: Subject, settings: SeriesSettings, measured: SeriesMeasured) -> TableData:
    """A row for each mode of each series; none without `on_demand`, or for one device."""
    rows = _rows(settings, measured) if subject.group is not None else []
    paper = peers().coldstart_series
    below = paper.groups.get(subject.model.name, {}).get(subject.model.rank.size)
    theirs = "no figure" if below is None else f"CaraServe's latency is {below:g} % below OnDemand's (figure 15)"
    note = f"the paper, for {subject.title}: {theirs}"
    return TableData("group", f"{subject.title}: modes beside on_demand", _COLUMNS, rows, (note,))


def comparison_goals(settings: SeriesSettings, measured: SeriesMeasured) -> list[Goal]:
    """The share of OnDemand's overhead that each mode leaves, but for `wait`."""
    bound = goals().coldstart_series["group_overhead"]
    return [
        Goal(bound, share if isinstance(share, float) else None, f"{series}, {row}")
        for series, row, _, share in _rows(settings, measured)
        if row != "wait"
    ]


def _rows(settings: SeriesSettings, measured: SeriesMeasured) -> list[tuple[Value, ...]]:
    return [row for series in settings.series for row in _of_series(series, measured)]


def _of_series(series: Series, measured: SeriesMeasured) -> list[tuple[Value, ...]]:
    latencies = {result.row.name: LATENCY.mean_ms(result) for result in measured.of(series)}
    cached, on_demand = latencies.pop(CACHED, None), latencies.pop(ON_DEMAND, None)
    if on_demand is None:
        return []
    return [
        (series.name, row, 100 * (1 - latency / on_demand), _overhead_share(latency, cached, on_demand))
        for row, latency in latencies.items()
    ]


def _overhead_share(latency: float, cached: float | None, on_demand: float) -> float | None:
    if cached is None or on_demand <= cached:
        return None
    return (latency - cached) / (on_demand - cached)
