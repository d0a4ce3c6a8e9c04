"""What every benchmark leaves behind: tables on the terminal, JSON with the machine it ran on, and pictures.

A benchmark returns a ``Report``; the command line hands it to ``leave``, which does the rest. Pictures are drawn last,
so that figures which took minutes are on disk before matplotlib is imported.
"""

import json
import math
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: What a cell may hold; None is what was not measured, or not offered.
Value = float | int | str | None

#: Fills an empty figure.
Draw = Callable[["Figure"], None]

_LIBRARIES = ("triton", "flashinfer-python")


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name in JSON, its heading with the unit, and how its numbers are printed."""

    key: str
    title: str
    #: A format specification such as ".1f" or ",.0f"; texts are printed as they are.
    spec: str = ""

    def shown(self, value: Value) -> str:
        """The value as the terminal shows it."""
        if value is None:
            return "-"
        return value if isinstance(value, str) else format(value, self.spec)


@dataclass(frozen=True, slots=True)
class TableData:
    """One table. Rows hold a value for each column, in order; TableData(...).records is what JSON gets."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: Sequence[tuple[Value, ...]]
    #: Sentences under the table.
    notes: tuple[str, ...] = ()

    @property
    def records(self) -> list[dict[str, Value]]:
        """Each row as {key: value}. Raises ValueError if a row is not as long as the heading."""
        keys = [column.key for column in self.columns]
        return [dict(zip(keys, row, strict=True)) for row in self.rows]


@dataclass(frozen=True, slots=True)
class Report:
    """What one benchmark measured."""

    #: Names the files: NAME.json, and NAME-FIGURE.png for each of ``figures``.
    name: str
    machine: Mapping[str, Any]
    #: What was asked for: the options of the run.
    settings: Mapping[str, Any]
    tables: Sequence[TableData]
    #: Name -> what draws it; the name "" is NAME.png.
    figures: Mapping[str, Draw] = field(default_factory=dict)
    #: Single figures that no table holds, such as ratios.
    facts: Mapping[str, Value] = field(default_factory=dict)
    #: What could not be measured, and why: the rest is kept.
    failures: Sequence[str] = ()


def numbers(records: Sequence[Mapping[str, Value]], key: str) -> list[float]:
    """A column as pictures need it: what was not measured is NaN, which leaves a gap."""
    return [math.nan if (value := record[key]) is None else float(value) for record in records]


def host_facts() -> dict[str, Any]:
    """What a reader of the control plane's figures must know of where they were measured."""
    return {
        "device": platform.processor() or platform.machine(),
        "cpu_cores": os.cpu_count(),
        "python": platform.python_version(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def machine(device: str) -> dict[str, Any]:
    """What a reader of a device's figures must know of where they were measured."""
    import torch  # the control plane's benchmark has none

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
    """Prints the tables, then writes JSON and pictures into ``folder``, which is made. Returns what was written.

    Raises OSError where a file can't be written.
    """
    print_tables(report, console)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [write_json(report, folder), *save_figures(report, folder)]
    for path in paths:
        console.print(f"wrote {path}", soft_wrap=True)
    return paths


def print_tables(report: Report, console: Console) -> None:
    """All tables, each with its notes, then the single facts and what failed."""
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
    """One PNG for each figure."""
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
