"""The report of `bench coldstart-series`: tables, the paper's figures beside them, goals, and a picture a series."""

from dataclasses import asdict
from functools import partial

from rich.progress import Progress

from punica_serve.bench.coldstart_series.group_comparison import comparison_goals, comparison_table
from punica_serve.bench.coldstart_series.series_figures import draw_distributions, draw_loads
from punica_serve.bench.coldstart_series.series_goals import goals_of
from punica_serve.bench.coldstart_series.series_run import Plan, run_series
from punica_serve.bench.coldstart_series.series_settings import RowResult, SeriesMeasured, SeriesSettings
from punica_serve.bench.coldstart_series.series_times import MEASURES, cold_start_shares, overheads
from punica_serve.bench.goals import GOAL_SHAPE, goals_table
from punica_serve.bench.percentiles import percentiles_ms
from punica_serve.bench.reference_figures import peers
from punica_serve.bench.report import Column, Draw, Report, TableData, Value, machine
from punica_serve.bench.subject import Subject

_COLUMNS = (
    Column("series", "series"),
    Column("row", "row"),
    Column("num_requests", "requests", ",d"),
    Column("cold_share", "cold", ".0%"),
    *(
        column
        for measure in MEASURES
        for column in (
            Column(f"{measure.key}_ms_mean", f"{measure.title} ms", ",.2f"),
            Column(f"{measure.key}_ms_p50", "p50", ",.2f"),
            Column(f"{measure.key}_ms_p99", "p99", ",.2f"),
            Column(f"{measure.key}_over_cached", "over cached, %", "+.1f"),
        )
    ),
)
_PAPER_COLUMNS = (
    Column("series", "series"),
    Column("system", "system"),
    *(Column(measure.key, f"{measure.title}, % over cached", "+.0f") for measure in MEASURES),
)
_LOAD_COLUMNS = (
    Column("rank", "rank", "d"),
    Column("mb", "MB", ",.1f"),
    Column("num_copies", "copies of each byte", "d"),
    Column("ms", "load ms", ",.2f"),
    Column("gb_per_s", "GB/s", ",.2f"),
)
_NOTES = (
    "all times count from a request's arrival; means decide what is over cached",
    "cold: requests whose adapter was not on the device when they arrived",
)
_EMULATED = (
    "the slower link is an emulation: each piece of an adapter is copied several times, so that its bytes arrive at the"
    " rate of this table, while a piece alone takes no longer than on the real link"
)


def measure_all(subject: Subject, settings: SeriesSettings, plan: Plan, progress: Progress) -> Report:
    """Runs all rows of all series."""
    return make_report(subject, settings, run_series(subject, settings, plan, progress))


def make_report(subject: Subject, settings: SeriesSettings, measured: SeriesMeasured) -> Report:
    """The tables, goals and pictures of one run."""
    shares = cold_start_shares(measured)
    measured_series = [series for series in settings.series if measured.of(series)]
    tables = [_times_table(subject, settings, measured), _loads_table(measured), _paper_table(settings)]
    tables.append(comparison_table(subject, settings, measured))
    if subject.on_gpu and subject.group is not None:
        tables.append(goals_table(comparison_goals(settings, measured), f"Goals ({subject.title})"))
    elif subject.on_gpu and subject.model.name == GOAL_SHAPE:
        tables.append(goals_table(goals_of(settings, measured)))
    figures: dict[str, Draw] = {
        series.name: partial(draw_distributions, series=series, results=measured.of(series))
        for series in measured_series
    }
    if measured.link is not None:
        figures["loads"] = partial(draw_loads, link=measured.link, projections=settings.projections, shares=shares)
    return Report(
        name="coldstart-series",
        machine=machine(str(subject.device)),
        settings={**_shown(settings), "model": subject.title},
        tables=[table for table in tables if table.rows],
        figures=figures,
        facts={f"share of the latency in cold starts, {name}": share for name, share in shares.items()},
        failures=measured.failures,
    )


def _shown(settings: SeriesSettings) -> dict[str, object]:
    return {**asdict(settings), "trace": None if settings.trace is None else str(settings.trace)}


def _times_table(subject: Subject, settings: SeriesSettings, measured: SeriesMeasured) -> TableData:
    rows = [_row(result, measured) for series in settings.series for result in measured.of(series)]
    link = "emulated" if measured.link is not None and measured.link.is_emulated else "as it is"
    adapters = f"{settings.num_adapters} adapters of {settings.projections}"
    title = f"coldstart-series: {subject.title}, {settings.seconds:g} s, {adapters}, the link {link}"
    return TableData("series", title, _COLUMNS, rows, _NOTES)


def _row(result: RowResult, measured: SeriesMeasured) -> tuple[Value, ...]:
    over = overheads(result, measured)
    cells: list[Value] = []
    for measure in MEASURES:
        times_s = measure.of(result)
        shown = (measure.mean_ms(result), *percentiles_ms(times_s, 50, 99)) if times_s else (None,) * 3
        cells += [*shown, over[measure.key]]
    num_cold = sum(not times.was_resident for times in result.times)
    return result.series.name, result.row.name, len(result.times), num_cold / len(result.times), *cells


def _loads_table(measured: SeriesMeasured) -> TableData:
    link = measured.link
    if link is None:
        return TableData("loads", "", _LOAD_COLUMNS, [])
    loads = (*link.own, *link.loads) if link.is_emulated else link.own
    rows = [(load.rank, load.num_bytes / 1e6, load.num_copies, load.seconds * 1e3, load.gb_per_s) for load in loads]
    title = "Loads of one adapter from host memory, on the idle engine"
    return TableData("loads", title, _LOAD_COLUMNS, rows, (_EMULATED,) if link.is_emulated else ())


def _paper_table(settings: SeriesSettings) -> TableData:
    paper = peers().coldstart_series
    rows = [
        (series.name, system, *over)
        for series in settings.series
        for system, over in paper.overheads.get(series.name, {}).items()
    ]
    return TableData("paper", "The paper's overheads", _PAPER_COLUMNS, rows, (paper.source,))
