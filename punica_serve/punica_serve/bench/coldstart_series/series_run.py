"""Runs the rows of all series: one engine for each mode of cold starts, one fixed list of arrivals for each series."""

from collections.abc import Mapping, Sequence
from functools import partial

from rich.progress import Progress

from punica_serve.bench.coldstart_series.arrival_list import Arrival, arrival_list
from punica_serve.bench.coldstart_series.link_rate import Link, copies_for
from punica_serve.bench.coldstart_series.series_catalogue import Series
from punica_serve.bench.coldstart_series.series_engine import SeriesEngine, series_engine
from punica_serve.bench.coldstart_series.series_rows import SeriesRow
from punica_serve.bench.coldstart_series.series_settings import RowResult, SeriesMeasured, SeriesSettings
from punica_serve.bench.group_process import measure_in_process
from punica_serve.bench.subject import Subject
from punica_serve.bench.token_bar import TokenBar
from punica_serve.config.engine_section import ColdStart
from punica_serve.errors import ConfigError, RequestFailed
from punica_serve.simulation.azure_trace import read_trace, shares_of

#: Aliases that are there beside a row's own: of the warm-up, and of measured loads.
_OTHER_ALIASES = 128

#: The arrivals of each series, by its name.
Plan = Mapping[str, Sequence[Arrival]]


def plan_of(settings: SeriesSettings) -> Plan:
    """The arrivals of each series.

    Raises ConfigError for a trace that can't be read or that no series uses, and for fewer adapters than a step has.
    """
    if settings.num_adapters < settings.batch_size:
        raise ConfigError(
            f"`--adapters` is {settings.num_adapters}, but a step has up to {settings.batch_size} requests; raise it",
            param="adapters",
        )
    if settings.trace is not None and all(series.num_adapters is None for series in settings.series):
        raise ConfigError("`--trace` is for the serverless series; name one with `--series`", param="trace")
    counts = None if settings.trace is None else read_trace(settings.trace, settings.seconds)
    plan: dict[str, Sequence[Arrival]] = {}
    for series in settings.series:
        shares = None
        if counts is not None and series.num_adapters is not None:
            shares = shares_of(counts, series.num_adapters)
        plan[series.name] = arrival_list(series, settings.seconds, shares)
    return plan


def run_series(subject: Subject, settings: SeriesSettings, plan: Plan, progress: Progress) -> SeriesMeasured:
    """A row in which a request fails is not measured; the others go on. Raises RequestFailed if no load works."""
    measured = SeriesMeasured((), None)
    for mode in dict.fromkeys(row.mode for row in settings.rows):
        own = measure_in_process(subject, partial(_run_mode, subject, settings, plan, mode, measured.link), progress)
        measured = SeriesMeasured(measured.results + own.results, own.link, measured.failures + own.failures)
    return measured


def _run_mode(
    subject: Subject, settings: SeriesSettings, plan: Plan, mode: ColdStart, link: Link | None, progress: Progress
) -> SeriesMeasured:
    """The rows of one mode on an engine of their own. Raises RequestFailed if not even one load works.

    ``link``: measured by an earlier mode; None for the first.
    """
    num_adapters = max(len({arrival.adapter for arrival in arrivals}) for arrivals in plan.values())
    rows = [row for row in settings.rows if row.mode == mode]
    runs = _Runs(plan, progress, len(settings.series) * len(rows))
    with series_engine(subject, settings, mode, num_adapters + _OTHER_ALIASES, progress) as engine:
        engine.warm_up()
        link = _link(engine, settings, link)
        for series in settings.series:
            for row in rows:
                runs.run(engine, series, row)
    return SeriesMeasured(tuple(runs.results), link, tuple(runs.failures))


class _Runs:
    """The results of one engine's rows so far."""

    def __init__(self, plan: Plan, progress: Progress, num_runs: int) -> None:
        self.results: list[RowResult] = []
        self.failures: list[str] = []
        self._plan = plan
        self._progress = progress
        self._bar = TokenBar(progress)
        self._task = progress.add_task("coldstart-series", total=num_runs)

    def run(self, engine: SeriesEngine, series: Series, row: SeriesRow) -> None:
        """Runs one row, and notes its result or failure."""
        arrivals = self._plan[series.name]
        name = f"{series.name}, {row.name}"
        self._bar.start(name, sum(arrival.length.output for arrival in arrivals))
        try:
            times = engine.run(series, row, arrivals, self._bar.on_step)
        except RequestFailed as error:
            self.failures.append(f"{name}: {error.message}")
        else:
            self.results.append(RowResult(series, row, times))
            self._progress.console.print(f"{name}: {len(times)} requests")
        self._progress.advance(self._task)


def _link(engine: SeriesEngine, settings: SeriesSettings, earlier: Link | None) -> Link:
    """The engine's link, slowed down if that is asked for: in all engines by the factor found with the first."""
    if earlier is not None:
        engine.loads(earlier.num_copies)
        return earlier
    own = engine.loads(1)
    if settings.link_gb_per_s is None:
        return Link(own, own)
    measured = next(load for load in own if load.rank == settings.ranks[-1])
    return Link(own, engine.loads(copies_for(measured, settings.link_gb_per_s)))
