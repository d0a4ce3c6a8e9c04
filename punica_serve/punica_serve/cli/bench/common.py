"""What the benchmark commands share: options, the progress bar, and where results go."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from punica_serve.cli.outputs import check_folder, writing

if TYPE_CHECKING:
    from punica_serve.bench.report import Report

OutOption = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where JSON and pictures go.")]
DeviceOption = Annotated[str, typer.Option("--device", help="Device to measure: cuda:0, or cpu.")]

DEFAULT_OUT = Path("bench-results")
DEFAULT_DEVICE = "cuda:0"

_FILE_WIDTH = 200


def measure(benchmark: Callable[[Progress], "Report"], out: Path, refresh_per_s: float = 10.0) -> None:
    """Runs a benchmark under a progress bar, prints its tables, and writes its JSON and pictures into ``out``.

    Exits with code 1 if a part of it failed, once the rest is written.
    Drawing the bar takes the process a few milliseconds, ``refresh_per_s`` times a second.
    """
    from punica_serve.bench.report import leave

    check_folder(out)
    console = make_console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, *times, console=console, transient=True, refresh_per_second=refresh_per_s) as progress:
        report = benchmark(progress)
    with writing(out):
        leave(report, out, console)
    if report.failures:
        raise typer.Exit(1)


def make_console() -> Console:
    """A file has no width of its own, and rich would cut tables at 80."""
    console = Console()
    return console if console.is_terminal else Console(width=_FILE_WIDTH)
