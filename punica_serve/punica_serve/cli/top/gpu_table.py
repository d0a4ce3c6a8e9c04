"""The GPUs' table: the heat map with the current figures beside it."""

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from punica_serve.cli.top.display import Display
from punica_serve.cli.top.event_kinds import kinds_by_cell
from punica_serve.cli.top.gpu_figures import figures_beside, width_of
from punica_serve.cli.top.gpu_rows import GpuRow
from punica_serve.cli.top.heat_map import events_in, heat_row, legend, time_axis
from punica_serve.cli.top.state import State


def gpu_table(rows: list[GpuRow], state: State, display: Display) -> RenderableType:
    """The legend above a table of these GPUs, at least one."""
    name_width = min(max(cell_len(row.known.name) for row in rows), max(5, display.width // 4))
    figures = figures_beside(rows, display, display.width - name_width - 1)
    width = max(1, display.width - name_width - 1 - width_of(figures))
    columns = state.columns.newest(width)
    events = kinds_by_cell(state.marks.values())
    table = Table(
        Column("GPU", no_wrap=True, width=name_width),
        Column(time_axis(len(columns), width), no_wrap=True, width=width),
        *(Column(column.title, no_wrap=True, justify="right", width=column.width) for column in figures),
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        header_style="dim",
    )
    for index, row in enumerate(rows):
        cells = heat_row(row.uuid, columns, row.known.max_batch_size, events, display)
        cells.pad_left(width - len(columns))
        table.add_row(
            _ending_of(row.known.name, name_width, display), cells, *(column.texts[index] for column in figures)
        )
    drawn = events_in(columns, {row.uuid for row in rows}, events)
    return Group(legend({row.known.max_batch_size for row in rows}, drawn, display), table)


def _ending_of(name: str, width: int, display: Display) -> Text:
    """The name, or as much of its end as has room: GPUs of one runner differ in the end."""
    text = Text(name)
    if (num_left_out := cell_len(name) - width) > 0:
        text = Text("~" if display.is_ascii else "…") + text[num_left_out + 1 :]
    return text
