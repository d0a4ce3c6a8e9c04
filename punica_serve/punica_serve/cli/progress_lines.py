"""Progress of a long command: a bar on a terminal, elsewhere a line on stderr from time to time."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import Event, Thread

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task

_INTERVAL_S = 10.0


@contextmanager
def shown_progress(console: Console, *columns: ProgressColumn, refresh_per_s: float = 10.0) -> Iterator[Progress]:
    """Shows the tasks that are added while the context is open.

    ``columns``: of the bar, rich's own by default. Drawing it takes this process a few milliseconds each time.
    """
    bar = Progress(*columns, console=console, transient=True, refresh_per_second=refresh_per_s)
    with bar as progress, nullcontext() if console.is_terminal else _written_lines(progress):
        yield progress


@contextmanager
def _written_lines(progress: Progress) -> Iterator[None]:
    """Writes a line for each unfinished task, or the newest, to stderr, again and again while the context is open."""
    ended = Event()

    def write() -> None:
        while not ended.wait(_INTERVAL_S):
            unfinished = [task for task in progress.tasks if not task.finished]
            for task in unfinished or progress.tasks[-1:]:
                print(_line(task), file=sys.stderr, flush=True)

    writer = Thread(target=write, name="progress", daemon=True)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()


def _line(task: Task) -> str:
    done = f"{task.completed:g}" if task.total is None else f"{task.completed:g} of {task.total:g}"
    return f"{task.description}: {done}, {task.elapsed or 0:.0f} s"
