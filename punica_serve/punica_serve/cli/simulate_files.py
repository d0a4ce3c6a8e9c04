"""What `punica-serve simulate` leaves behind."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from rich.console import Console

    from punica_serve.simulation.timeline import Timeline


def write_files(
    summaries: "Mapping[str, DataclassInstance]",
    tables: "Mapping[str, Timeline]",
    columns: "Mapping[str, Timeline]",
    stem: Path,
    title: str,
    console: "Console",
) -> None:
    """The summaries as JSON, a table for each of ``tables`` by its whole name, a picture of ``columns`` side by side.

    ``stem`` is the path of JSON and picture, without suffix.
    """
    import msgspec

    from punica_serve.simulation.timeline import draw, write_csv

    stem.parent.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {name: asdict(summary) for name, summary in summaries.items()}
    summary_path = stem.parent / f"{stem.name}.json"
    summary_path.write_bytes(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
    written = [write_csv(timeline, stem.parent / f"{name}.csv") for name, timeline in tables.items()]
    picture = draw(columns, stem.parent / f"{stem.name}.png", title=title)
    for path in (summary_path, *written, picture):
        console.print(f"wrote {path}", soft_wrap=True, highlight=False)
