"""A cluster's activity over time, simulated or observed, for pictures and tables."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Timeline:
    """Means over equal intervals; every list has an entry for each interval."""

    interval_s: float
    requests_per_s: list[float]
    tokens_per_s: list[float]
    #: Queued requests at the end of each interval.
    queue_length: list[int]
    #: GPU -> its batch sizes; 0 while idle.
    batch_sizes: dict[str, list[float]]
    max_batch_size: int

    @property
    def times_s(self) -> list[float]:
        """The start of each interval."""
        return [number * self.interval_s for number in range(len(self.requests_per_s))]


def write_csv(timeline: Timeline, path: Path) -> Path:
    """Writes a row for each interval. The same timeline gives the same bytes."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        names = [f"batch_size_{number}" for number in range(len(timeline.batch_sizes))]
        writer.writerow(["time_s", "requests_per_s", "tokens_per_s", "queue_length", *names])
        columns = (timeline.times_s, timeline.requests_per_s, timeline.tokens_per_s, timeline.queue_length)
        for *row, batch_sizes in zip(*columns, zip(*timeline.batch_sizes.values(), strict=True), strict=True):
            writer.writerow([f"{value:.6g}" for value in (*row, *batch_sizes)])
    return path


def draw(columns: Mapping[str, Timeline], path: Path, *, title: str) -> Path:
    """Draws the three panels of Punica's figure 13: request rate, tokens per second, and batch size of each GPU.

    There is a column for each timeline, side by side at the same scale.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9 * len(columns), 8), layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(3, len(columns), sharex="col", sharey="row", height_ratios=(1, 1, 2), squeeze=False)
    for (name, timeline), (rates, tokens, batches) in zip(columns.items(), panels.T, strict=True):
        minutes = [time_s / 60 for time_s in timeline.times_s]
        rates.plot(minutes, timeline.requests_per_s, linewidth=1)
        tokens.plot(minutes, timeline.tokens_per_s, linewidth=1, color="tab:green")
        image = batches.imshow(
            list(timeline.batch_sizes.values()),
            aspect="auto",
            interpolation="nearest",
            origin="lower",
            cmap="magma_r",
            vmin=0,
            vmax=timeline.max_batch_size,
            extent=(0, len(minutes) * timeline.interval_s / 60, -0.5, len(timeline.batch_sizes) - 0.5),
        )
        rates.set_title(name)
        batches.set_xlabel("minutes")
        for axes in (rates, tokens):
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
    for axes, label in zip(panels[:, 0], ("requests/s", "tokens/s", "GPU"), strict=True):
        axes.set_ylabel(label)
    panels[2, 0].yaxis.set_major_locator(MaxNLocator(integer=True))
    figure.colorbar(image, ax=panels[2].tolist(), label="batch size")
    figure.savefig(path, dpi=110)
    return path
