"""The report of a benchmark: tables on the terminal, JSON with a description of the machine, and pictures.

A benchmark returns a ``Report``; the command line passes it to ``leave``, which does the rest. Pictures are drawn last,
so that results that took minutes are on disk before matplotlib is imported.
"""

import json
import math
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: A cell's value; None if it was not measured, or does not exist.
Value = float | int | str | None

#: Fills an empty figure.
Draw = Callable[["Figure"], None]

_LIBRARIES = ("triton", "flashinfer-python")


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its key in JSON, its heading with the unit, and the format of its numbers."""

    key: str
    title: str
    #: A format specification such as ".1f" or ",.0f"; strings are printed unchanged.
    spec: str = ""

    def shown(self, value: Value) -> str:
        """The value as shown on the terminal."""
        if value is None:
            return "-"
        return value if isinstance(value, str) else format(value, self.spec)


#: CPU time over wall time of one process.
CPU_SHARE = Column("cpu_share", "of one core", ".0%")


@dataclass(frozen=True, slots=True)
class TableData:
    """One table. Rows hold a value for each column, in order; ``records`` is its JSON form."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: Sequence[tuple[Value, ...]]
    #: Lines under the table.
    notes: tuple[str, ...] = ()

    @property
    def records(self) -> list[dict[str, Value]]:
        """Each row as {key: value}. Raises ValueError if a row's length differs from the heading's."""
        keys = [column.key for column in self.columns]
        return [dict(zip(keys, row, strict=True)) for row in self.rows]


@dataclass(frozen=True, slots=True)
class Report:
    """The results of one benchmark."""

    #: Names the files: NAME.json, and NAME-FIGURE.png for each of ``figures``.
    name: str
    machine: Mapping[str, Any]
    #: The options of the run.
    settings: Mapping[str, Any]
    tables: Sequence[TableData]
    #: Name -> the function that draws it; the name "" stands for NAME.png.
    figures: Mapping[str, Draw] = field(default_factory=dict)
    #: Single values outside tables, such as ratios.
    facts: Mapping[str, Value] = field(default_factory=dict)
    #: Parts that could not be measured, and why; the rest is kept.
    failures: Sequence[str] = ()


def numbers(records: Sequence[Mapping[str, Value]], key: str) -> list[float]:
    """A column for plots: missing values are NaN, which leaves a gap."""
    return [math.nan if (value := record[key]) is None else float(value) for record in records]


def host_facts() -> dict[str, Any]:
    """A description of this machine, for results of the control plane."""
    return {
        "device": platform.processor() or platform.machine(),
        "cpu_cores": os.cpu_count(),
        "python": platform.python_version(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def machine(device: str) -> dict[str, Any]:
    """A description of this machine and device, for results of a device."""
    import torch  # the control plane's benchmark runs without torch

    facts = {**host_facts(), "torch_threads": torch.get_num_threads(), "torch": torch.__version__}
    for library in _LIBRARIES:
        facts[library] = _version(library)
    if torch.device(device).type == "cuda":
        properties = torch.cuda.get_device_properties(torch.device(device))
        facts["device"] = properties.name
        facts["cuda"] = torch.version.cuda
        facts["capability"] = f"{properties.major}.{properties.minor}"
        facts["multiprocessors"] = properties.multi_processor_count
        facts["device_memory_bytes"] = properties.total_memory
    return facts


def leave(report: Report, folder: Path, console: Console) -> list[Path]:
    """Prints the tables, then writes JSON and pictures into ``folder``, which is created. Returns the written files.

    Without matplotlib it says so and leaves the pictures out. Raises OSError if a file can't be written.
    """
    print_tables(report, console)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [write_json(report, folder)]
    if find_spec("matplotlib") is not None:
        paths += save_figures(report, folder)
    elif report.figures:
        console.print("no picture: install the `bench` extra for one", highlight=False)
    for path in paths:
        console.print(f"wrote {path}", soft_wrap=True)
    return paths


def print_tables(report: Report, console: Console) -> None:
    """Prints all tables with their notes, then the single values and the failures."""
    for data in report.tables:
        table = Table(title=data.title, title_justify="left")
        for column in data.columns:
            numeric = any(not isinstance(record[column.key], str) for record in data.records)
            table.add_column(column.title, justify="right" if numeric else "left")
        for row in data.rows:
            table.add_row(*(column.shown(value) for column, value in zip(data.columns, row, strict=True)))
        console.print(table)
        for note in data.notes:
            console.print(note)
    for name, value in report.facts.items():
        console.print(f"{name}: {Column(name, name, '.3g' if isinstance(value, float) else '').shown(value)}")
    for failure in report.failures:
        console.print(f"FAILED {failure}", markup=False)


def write_json(report: Report, folder: Path) -> Path:
    """NAME.json: machine, settings, facts, and each table as a list of records."""
    document = {
        "benchmark": report.name,
        "machine": dict(report.machine),
        "settings": dict(report.settings),
        "facts": dict(report.facts),
        "failures": list(report.failures),
        "tables": {table.name: table.records for table in report.tables},
    }
    path = folder / f"{report.name}.json"
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return path


def save_figures(report: Report, folder: Path) -> list[Path]:
    """Writes a PNG for each figure."""
    return [
        save_figure(folder / (f"{report.name}-{name}.png" if name else f"{report.name}.png"), draw)
        for name, draw in report.figures.items()
    ]


def save_figure(path: Path, draw: Draw) -> Path:
    """Draws without a display."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    draw(figure)
    figure.savefig(path, dpi=120)
    return path


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None
