"""Options, progress bar and output of the benchmark commands."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from punica_serve.process.outputs import check_folder, writing

if TYPE_CHECKING:
    from punica_serve.bench.report import Report

OutOption = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder for JSON and pictures.")]
DeviceOption = Annotated[str, typer.Option("--device", help="Device to measure: cuda:0, or cpu.")]

DEFAULT_OUT = Path("bench-results")
DEFAULT_DEVICE = "cuda:0"

_FILE_WIDTH = 200
_TOLD_EVERY_S = 10.0


def measure(benchmark: Callable[[Progress], "Report"], out: Path, refresh_per_s: float = 10.0) -> None:
    """Runs a benchmark with a progress bar, prints its tables, and writes its JSON and pictures into ``out``.

    Where no terminal shows the bar, lines on stderr tell how far it is.

    If a part of it failed, exits with code 1 after writing the rest. Drawing the bar takes this process a few
    milliseconds, ``refresh_per_s`` times a second.
    """
    from punica_serve.bench.report import leave

    check_folder(out)
    console = make_console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    bar = Progress(*columns, *times, console=console, transient=True, refresh_per_second=refresh_per_s)
    with bar as progress, nullcontext() if console.is_terminal else _telling(progress):
        report = benchmark(progress)
    with writing(out):
        leave(report, out, console)
    if report.failures:
        raise typer.Exit(1)


@contextmanager
def _telling(progress: Progress) -> Iterator[None]:
    """Writes a line about the newest task to stderr, again and again while the context is open."""
    ended = Event()

    def tell() -> None:
        while not ended.wait(_TOLD_EVERY_S):
            if progress.tasks:
                print(_line(progress.tasks[-1]), file=sys.stderr, flush=True)

    teller = Thread(target=tell, name="progress", daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


def _line(task: Task) -> str:
    done = f"{task.completed:g}" if task.total is None else f"{task.completed:g} of {task.total:g}"
    return f"{task.description}: {done}, {task.elapsed or 0:.0f} s"


def make_console() -> Console:
    """A console for terminals and files; rich would cut tables in a file at 80 columns."""
    console = Console()
    return console if console.is_terminal else Console(width=_FILE_WIDTH)
