"""The report of `bench cpu-assist`: a table and a picture for each figure."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from rich.progress import Progress

from punica_serve.bench.cpu_assist_figures.figure_settings import FigureSettings, FiguresMeasured
from punica_serve.bench.cpu_assist_figures.figures_run import run_figures
from punica_serve.bench.report import Column, Draw, Report, TableData, Value, machine, numbers
from punica_serve.bench.subject import Subject

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: (Which of two ways, processes or cores, milliseconds): the better way first.
_Rows = list[tuple[Value, ...]]

_COLUMNS = (Column("way", "way"), Column("count", "processes", "d"), Column("ms", "ms", ",.3f"))
_NO_GPU = "figure 16 needs a GPU: not measured"


def measure_all(subject: Subject, settings: FigureSettings, progress: Progress) -> Report:
    """Runs all figures."""
    return make_report(subject, settings, run_figures(subject, settings, progress))


def make_report(subject: Subject, settings: FigureSettings, measured: FiguresMeasured) -> Report:
    """The tables, ratios and pictures of one run."""
    tables = _tables(subject, settings, measured)
    figures: dict[str, Draw] = {
        table.name: partial(_draw, table=table, title=table.title) for table in tables if table.rows
    }
    return Report(
        name="cpu-assist",
        machine=machine(str(subject.device)),
        settings={**asdict(settings), "model": subject.model.name},
        tables=[table for table in tables if table.rows],
        figures=figures,
        facts=_facts(tables),
        failures=measured.failures,
    )


def _tables(subject: Subject, settings: FigureSettings, measured: FiguresMeasured) -> list[TableData]:
    rows, notes = f"{settings.num_tokens} rows", _missing(subject, settings, measured)
    trips: _Rows = [(trip.way, trip.num_processes, 1e3 * trip.seconds) for trip in measured.round_trips]
    layers: _Rows = [(layer.workers, layer.num_cores, 1e3 * layer.seconds) for layer in measured.layers]
    prefills: _Rows = [(own.waits, own.num_processes, 1e3 * own.seconds) for own in measured.prefills]
    first = subject.model.spec.groups[0].name
    return [
        TableData("round-trips", f"Figure 17: {rows} to processes and back", _COLUMNS, trips, notes),
        TableData("layers", f"Figure 18: x A B of {first}, rank {settings.rank}, {rows}, a layer", _COLUMNS, layers),
        TableData("prefills", f"Figure 16: {first} of all layers, rank {settings.rank}, {rows}", _COLUMNS, prefills),
    ]


def _missing(subject: Subject, settings: FigureSettings, measured: FiguresMeasured) -> tuple[str, ...]:
    """What was not measured, and why."""
    known = {layer.num_cores for layer in measured.layers}
    counts = ", ".join(str(count) for count in settings.counts if count not in known)
    few = f"figures 16 and 18 with {counts} processes: not measured, since so many could not be had"
    return (*((few,) if counts else ()), *(() if subject.on_gpu else (_NO_GPU,)))


def _facts(tables: Sequence[TableData]) -> dict[str, Value]:
    """How many times as long the other way takes, with the most processes."""
    facts: dict[str, Value] = {}
    for table in tables:
        if not table.rows:
            continue
        most = max(int(record["count"] or 0) for record in table.records)
        ms = {str(record["way"]): record["ms"] for record in table.records if record["count"] == most}
        (first, first_ms), *others = ms.items()
        for other, other_ms in others:
            facts[f"{other} / {first}, {most}"] = float(other_ms or 0) / float(first_ms or 1)
    return facts


def _draw(figure: "Figure", *, table: TableData, title: str) -> None:
    axes = figure.subplots()
    for way in dict.fromkeys(str(record["way"]) for record in table.records):
        own = [record for record in table.records if record["way"] == way]
        axes.plot(numbers(own, "count"), numbers(own, "ms"), marker="o", label=way)
    axes.set_title(title)
    axes.set_xlabel("processes")
    axes.set_ylabel("ms")
    axes.set_ylim(bottom=0)
    axes.legend()
