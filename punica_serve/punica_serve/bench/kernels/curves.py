"""Plots of time over batch size, one panel for each population, as in the paper."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from punica_serve.bench.report import TableData, numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_panels(table: TableData, figure: "Figure", *, line: str, log: bool) -> None:
    """A panel for each population, a curve for each value of column ``line``."""
    records = table.records
    populations = list(dict.fromkeys(record["population"] for record in records))
    figure.set_size_inches(4 * len(populations), 4)
    panels = figure.subplots(1, len(populations), sharey=True, squeeze=False)[0]
    for axes, population in zip(panels, populations, strict=True):
        own = [record for record in records if record["population"] == population]
        for name in dict.fromkeys(record[line] for record in own):
            points = [record for record in own if record[line] == name]
            axes.plot(numbers(points, "batch"), numbers(points, "us"), marker="o", ms=4, label=f"{name}")
        axes.set_title(f"{population}")
        label_batches(axes, [int(record["batch"] or 0) for record in own])
        if log:
            axes.set_yscale("log")
    panels[0].set_ylabel("µs")
    figure.legend(*panels[0].get_legend_handles_labels(), title=line, fontsize=8, loc="outside right center")
    figure.suptitle(table.title, fontsize=11)


def label_batches(axes: "Axes", batch_sizes: Sequence[int]) -> None:
    """Uses a logarithmic axis, labelled with the batch sizes themselves."""
    ticks = sorted(set(batch_sizes))
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("batch size")
    axes.grid(alpha=0.3)
