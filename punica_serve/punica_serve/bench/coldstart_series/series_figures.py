"""The pictures: distributions of a series' times, the share of cold starts, and the time of a load over its rank."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from punica_serve.bench.coldstart_series.link_rate import Link
from punica_serve.bench.coldstart_series.series_catalogue import Series
from punica_serve.bench.coldstart_series.series_settings import RowResult
from punica_serve.bench.coldstart_series.series_times import MEASURES
from punica_serve.bench.host_adapters import Projections

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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


def draw_loads(figure: "Figure", *, link: Link, projections: Projections, shares: Mapping[str, float]) -> None:
    """Draws the share of cold starts in each series' latency, and the time of a load over the rank (figure 3 of the
    paper).
    """
    if not shares:
        _draw_load_times(figure.subplots(), link, projections)
        return
    figure.set_size_inches(10, 4)
    left, right = figure.subplots(1, 2)
    left.bar(list(shares), [100 * share for share in shares.values()])
    left.set_title("Cold starts in the latency of on_demand")
    left.set_ylabel("%")
    _draw_load_times(right, link, projections)


def _draw_load_times(axes: "Axes", link: Link, projections: Projections) -> None:
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
