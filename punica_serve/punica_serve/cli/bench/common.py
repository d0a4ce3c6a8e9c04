"""Options, progress bar and output of the benchmark commands."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from punica_serve.cli.progress_lines import shown_progress
from punica_serve.process.outputs import check_folder, writing

if TYPE_CHECKING:
    from punica_serve.bench.report import Report

OutOption = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder for JSON and pictures.")]
DeviceOption = Annotated[str, typer.Option("--device", help="Device to measure: cuda:0, or cpu.")]

DEFAULT_OUT = Path("bench-results")
DEFAULT_DEVICE = "cuda:0"

_FILE_WIDTH = 200


def measure(benchmark: Callable[[Progress], "Report"], out: Path, refresh_per_s: float = 10.0) -> None:
    """Runs a benchmark, shows its progress, prints its tables, and writes its JSON and pictures into ``out``.

    If a part of it failed, exits with code 1 after writing the rest.
    """
    from punica_serve.bench.report import leave

    check_folder(out)
    console = make_console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with shown_progress(console, *columns, *times, refresh_per_s=refresh_per_s) as progress:
        report = benchmark(progress)
    with writing(out):
        leave(report, out, console)
    if report.failures:
        raise typer.Exit(1)


def make_console() -> Console:
    """A console for terminals and files; rich would cut tables in a file at 80 columns."""
    console = Console()
    return console if console.is_terminal else Console(width=_FILE_WIDTH)
