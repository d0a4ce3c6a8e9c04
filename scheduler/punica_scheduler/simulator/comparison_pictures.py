"""Draws policies under the same arrivals, and the cost of tighter promises."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from punica_scheduler.simulator.comparison import first_tokens_s, times_per_token_s
from punica_scheduler.simulator.run import Result
from punica_scheduler.simulator.summary import Summary
from punica_serve.simulation.attainment import RequestTimes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Summaries of each policy, by the scale of its promises.
Curves = Mapping[str, Mapping[float, Summary]]

#: A distribution is drawn up to this share: the slowest request of all would squeeze the others.
_DRAWN_SHARE = 0.999
#: Field of an Attainment -> its name and grey.
_KEPT = {
    "time_per_token": ("time per token", "0.75"),
    "first_token": ("first token", "0.5"),
    "both": ("both", "0.25"),
}


def draw_policies(results: Mapping[str, Result], path: Path, *, title: str) -> Path:
    """Draws distributions of time per token and of first tokens, and bars of kept promises and of GPU time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 9), layout="constrained")
    figure.suptitle(title)
    (per_token, first), (kept, gpu_time) = figure.subplots(2, 2)
    _draw_cdfs(per_token, first, {name: result.times for name, result in results.items()})
    summaries = {name: result.summary for name, result in results.items()}
    _draw_kept(kept, summaries)
    colors = [f"C{number}" for number in range(len(summaries))]
    gpu_time.bar(list(summaries), [summary.gpu_time_s for summary in summaries.values()], color=colors)
    gpu_time.set_ylabel("GPU time in steps, s")
    for axes in (kept, gpu_time):
        axes.grid(alpha=0.3)
        axes.tick_params(axis="x", labelrotation=20)
        axes.set_axisbelow(True)
    figure.savefig(path, dpi=110)
    return path


def draw_scales(curves: Curves, path: Path, *, title: str) -> Path:
    """Draws the share of requests whose promises were all kept, and the GPU time, over the scale of the promises."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    figure.suptitle(title)
    kept, gpu_time = figure.subplots(1, 2)
    for name, by_scale in curves.items():
        scales = sorted(by_scale)
        attained = [by_scale[scale].attained for scale in scales]
        kept.plot(scales, [found.both if found else np.nan for found in attained], marker="o", label=name)
        gpu_time.plot(scales, [by_scale[scale].gpu_time_s for scale in scales], marker="o", label=name)
    kept.set_ylabel("share of requests with all promises kept")
    gpu_time.set_ylabel("GPU time in steps, s")
    for axes in (kept, gpu_time):
        axes.set_xlabel("promised time per token / unloaded")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    kept.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    return path


def draw_times(times: Mapping[str, RequestTimes], path: Path, *, title: str) -> Path:
    """Draws the distributions of time per token and of first tokens."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.5), layout="constrained")
    figure.suptitle(title)
    per_token, first = figure.subplots(1, 2)
    _draw_cdfs(per_token, first, times)
    figure.savefig(path, dpi=110)
    return path


def _draw_cdfs(per_token: "Axes", first: "Axes", times: Mapping[str, RequestTimes]) -> None:
    for name, own in times.items():
        _draw_cdf(per_token, 1e3 * times_per_token_s(own), name)
        _draw_cdf(first, first_tokens_s(own), name)
    per_token.set_xlabel("time per token, ms")
    first.set_xlabel("first token, s")
    for axes in (per_token, first):
        axes.set_ylabel("share of requests")
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3)


def _draw_cdf(axes: "Axes", times: "np.typing.NDArray[np.float64]", name: str) -> None:
    shares = np.arange(1, len(times) + 1) / max(1, len(times))
    drawn = shares <= _DRAWN_SHARE
    axes.plot(times[drawn], shares[drawn], linewidth=1, label=name)


def _draw_kept(axes: "Axes", summaries: Mapping[str, Summary]) -> None:
    """A group of bars for each policy; none without promises."""
    width = 0.8 / len(_KEPT)
    for number, (field, (label, color)) in enumerate(_KEPT.items()):
        places = [place + (number - 1) * width for place in range(len(summaries))]
        shares = [getattr(summary.attained, field) if summary.attained else 0.0 for summary in summaries.values()]
        axes.bar(places, shares, width, label=label, color=color)
    axes.set_xticks(range(len(summaries)), list(summaries))
    axes.set_ylabel("share of requests with promises kept")
    axes.set_ylim(0, 1.15)
    axes.legend(fontsize=8, loc="upper center", ncols=len(_KEPT))
