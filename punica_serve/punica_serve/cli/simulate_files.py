"""Writes the files of `punica-serve simulate`."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from punica_serve.process.outputs import writing

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from rich.console import Console

    from punica_serve.simulation.timeline import Timeline


#: Writes the file of this path.
Writer = Callable[[Path], object]


def check_pictures() -> None:
    """Raises ModuleNotFoundError, which names the extra, before a long run that could draw nothing."""
    import matplotlib  # noqa: F401


def write_files(
    summaries: "Mapping[str, DataclassInstance]",
    tables: "Mapping[str, Timeline]",
    columns: "Mapping[str, Timeline]",
    stem: Path,
    title: str,
    console: "Console",
) -> None:
    """Writes the summaries as JSON, a table for each of ``tables`` by its full name, and a picture of ``columns`` side
    by side.

    ``stem`` is the path of JSON and picture without suffix; its folder is created. Raises ConfigError if a file can't
    be written.
    """
    from punica_serve.simulation.timeline import draw, write_csv

    folder = stem.parent
    writers: dict[Path, Writer] = {folder / f"{stem.name}.json": partial(write_json, summaries)}
    writers |= {folder / f"{name}.csv": partial(write_csv, timeline) for name, timeline in tables.items()}
    writers[folder / f"{stem.name}.png"] = partial(draw, columns, title=title)
    write_each(writers, console)


def write_each(writers: Mapping[Path, Writer], console: "Console") -> None:
    """Calls each writer with its path, in folders that are created. Raises ConfigError if a file can't be written."""
    for path, write in writers.items():
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        with writing(path):
            write(path)
        console.print(f"wrote {path}", soft_wrap=True, highlight=False)


def write_json(summaries: "Mapping[str, DataclassInstance]", path: Path) -> None:
    """Writes them by their names."""
    import msgspec

    document = {name: asdict(summary) for name, summary in summaries.items()}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
