"""The pictures: distributions of a series' times, and the time of a load over its rank."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from punica_serve.bench.coldstart_series.link_rate import Link
from punica_serve.bench.coldstart_series.series_catalogue import Series
from punica_serve.bench.coldstart_series.series_settings import Projections, RowResult
from punica_serve.bench.coldstart_series.series_times import MEASURES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_distributions(figure: "Figure", *, series: Series, results: Sequence[RowResult]) -> None:
    """Draws the cumulative distribution of each time, with a line for each row."""
    figure.set_size_inches(12, 4)
    figure.suptitle(f"{series.name}: rank {series.rank}, {series.load}")
    for axes, measure in zip(figure.subplots(1, len(MEASURES)), MEASURES, strict=True):
        for result in results:
            times_ms = np.sort(measure.of(result)) * 1e3
            shares = np.arange(1, len(times_ms) + 1) / max(len(times_ms), 1)
            axes.step(times_ms, shares, where="post", label=result.row.name)
        axes.set_title(measure.title)
        axes.set_xlabel("ms")
        axes.set_ylabel("share that took no longer")
        axes.legend()


def draw_loads(figure: "Figure", *, link: Link, projections: Projections) -> None:
    """Draws the time of a load over the rank (figure 3 of the paper, right)."""
    axes = figure.subplots()
    lines = [("the link as it is", link.own)]
    if link.is_emulated:
        lines.append((f"emulated, {link.loads[-1].gb_per_s:.1f} GB/s", link.loads))
    for label, loads in lines:
        axes.plot([load.rank for load in loads], [load.seconds * 1e3 for load in loads], marker="o", label=label)
    axes.set_title(f"Load of one adapter from host memory, {projections}")
    axes.set_xlabel("rank")
    axes.set_ylabel("ms")
    axes.set_ylim(bottom=0)
    axes.legend()
