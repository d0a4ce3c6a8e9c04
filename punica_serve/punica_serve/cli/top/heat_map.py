"""Cells of the heat map: a GPU's mean batch sizes over time as colours, or as characters without colours."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import ceil
from typing import NamedTuple

from rich.style import Style
from rich.text import Text

from punica_serve.cli.top.display import Display
from punica_serve.cli.top.event_kinds import EventKind, importance
from punica_serve.cli.top.heat_columns import HeatColumn

#: matplotlib's magma, dark to light: idle, then equal steps from 0.15 to 0.97. They differ among 256 colours, too.
_MAGMA = ("#000004", "#251255", "#57157e", "#862781", "#b73779", "#e44f64", "#fa815f", "#feb97f", "#fcf0b2")
#: Steps from here on are light.
_FIRST_LIGHT = 5
#: Characters of the same steps.
_ASCII = ".:-=+*#%@"
_BLOCKS = "·▁▂▃▄▅▆▇█"
_NUM_STEPS = len(_MAGMA) - 1
_ABSENT = " "

_PLAIN = Style()
_BOLD = Style(bold=True)
_FILLS = [Style(bgcolor=color, color="grey62" if not step else None) for step, color in enumerate(_MAGMA)]
_LETTERS = [
    Style(bgcolor=color, color="#000000" if step >= _FIRST_LIGHT else "#ffffff", bold=True)
    for step, color in enumerate(_MAGMA)
]


class HeatCell(NamedTuple):
    character: str
    style: Style


def heat_row(
    uuid: str,
    columns: Iterable[HeatColumn],
    max_batch_size: int,
    events: Mapping[tuple[str, int], EventKind],
    display: Display,
) -> Text:
    """A GPU's row: a cell for each column, with a letter where an event belongs."""
    return _text(
        _cell(step_of(column.batch_sizes.get(uuid), max_batch_size), events.get((uuid, column.at_s)), display)
        for column in columns
    )


def step_of(batch_size: float | None, max_batch_size: int) -> int | None:
    """The step on the scale: 0 is idle, and any use is above it. None means that the GPU was not in the cluster."""
    if not batch_size:
        return None if batch_size is None else 0
    return max(1, min(_NUM_STEPS, ceil(_NUM_STEPS * batch_size / max_batch_size)))


def time_axis(num_columns: int, width: int) -> Text:
    """The heading of the cells, ``width`` wide: the age of the oldest column above it, and "now" at the right edge."""
    ago = f"{num_columns} s ago"
    start = max(0, width - num_columns)
    if start + len(ago) + len(" now") > width:
        return Text("now"[:width].rjust(width))
    return Text(f"{'':{start}}{ago}{'now':>{width - start - len(ago)}}")


def legend(max_batch_sizes: Collection[int], drawn: Iterable[EventKind], display: Display) -> Text:
    """The scale, from idle to a full batch, and the letters of the events that are drawn."""
    most = str(next(iter(max_batch_sizes))) if len(max_batch_sizes) == 1 else "full"
    scale = _text(_cell(step, None, display) for step in range(_NUM_STEPS + 1))
    letters = "".join(f"  {kind.letter} {kind.words}" for kind in sorted(set(drawn), key=importance))
    text = Text.assemble("mean batch size 0 ", scale, f" {most}  (blank: not in the cluster){letters}")
    text.no_wrap, text.overflow = True, display.overflow
    return text


def _cell(step: int | None, event: EventKind | None, display: Display) -> HeatCell:
    if step is None:
        return HeatCell(event.letter, _BOLD) if event else HeatCell(_ABSENT, _PLAIN)
    if event:
        return HeatCell(event.letter, _LETTERS[step] if display.has_colors else _BOLD)
    characters = _ASCII if display.is_ascii else _BLOCKS
    if not display.has_colors:
        return HeatCell(characters[step], _PLAIN)
    return HeatCell(" " if step else characters[0], _FILLS[step])


def _text(cells: Iterable[HeatCell]) -> Text:
    return Text.assemble(*_runs(cells))


def _runs(cells: Iterable[HeatCell]) -> Iterator[tuple[str, Style]]:
    """Cells side by side of one style are one span."""
    for style, run in groupby(cells, key=lambda cell: cell.style):
        yield "".join(cell.character for cell in run), style


def events_in(
    columns: Sequence[HeatColumn], uuids: Collection[str], events: Mapping[tuple[str, int], EventKind]
) -> set[EventKind]:
    """The kinds of events that these rows show."""
    if not columns:
        return set()
    first_s = columns[0].at_s
    return {kind for (uuid, at_s), kind in events.items() if at_s >= first_s and uuid in uuids}
