"""What the benchmark commands share: options, the progress bar, and where results go."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from punica_serve.bench.report import Report

OutOption = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where JSON and pictures go.")]
DeviceOption = Annotated[str, typer.Option("--device", help="Device to measure: cuda:0, or cpu.")]

DEFAULT_OUT = Path("bench-results")
DEFAULT_DEVICE = "cuda:0"


def measure(benchmark: Callable[[Progress], "Report"], out: Path) -> None:
    """Runs a benchmark under a progress bar, prints its tables, and writes its JSON and pictures into ``out``."""
    from punica_serve.bench.report import leave

    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, *times, console=console, transient=True) as progress:
        report = benchmark(progress)
    leave(report, out, console)
