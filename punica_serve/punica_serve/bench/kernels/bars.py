"""Bar charts, with a group for each row of a table."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from punica_serve.bench.report import TableData, Value, numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_bars(
    table: TableData, figure: "Figure", series: Mapping[str, str], label: Callable[[dict[str, Value]], str]
) -> None:
    """A bar for each of ``series``, which maps columns to legends; ``label`` names a group. A floor, if any, is a
    stroke.
    """
    records = table.records
    figure.set_size_inches(max(8.0, 0.6 * len(records) + 2), 5)
    axes = figure.subplots()
    width = 0.8 / len(series)
    places = range(len(records))
    for number, (key, legend) in enumerate(series.items()):
        axes.bar([place + width * number for place in places], numbers(records, key), width, label=legend)
    centers = [place + width * (len(series) - 1) / 2 for place in places]
    if any(column.key == "floor_us" for column in table.columns):
        axes.scatter(centers, numbers(records, "floor_us"), marker="_", s=200, c="k", label="floor", zorder=3)
    axes.set_xticks(centers, [label(record) for record in records], fontsize=8, rotation=90)
    axes.set_yscale("log")
    axes.set_ylabel("µs")
    axes.set_title(table.title, fontsize=10)
    axes.legend()
