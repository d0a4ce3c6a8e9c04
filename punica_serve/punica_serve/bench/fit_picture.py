"""The picture of a profile's fit: what LoRA adds to decode steps, by three models (CaraServe, figure 9)."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from punica_serve.performance.lora_fit import LineFit, LoraFit, LoraSample, predicted_ms
from punica_serve.performance.lora_times import MAX_FUSED_ROWS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_fit(samples: Sequence[LoraSample], fit: LoraFit, path: Path, *, title: str) -> Path:
    """Draws the two models of CaraServe as lines over their numbers, and ours as predicted against measured."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 4.5), layout="constrained")
    figure.suptitle(title)
    padded, unpadded, ours = figure.subplots(1, 3)
    fused = [sample for sample in samples if sample.num_rows <= MAX_FUSED_ROWS]
    equal = [sample for sample in fused if sample.kind == "equal"]
    differing = [sample for sample in fused if sample.num_adapters == sample.num_rows]
    _draw_line(padded, equal, fit.padded, lambda sample: sample.num_rows * sample.max_rank)
    padded.set_xlabel("rows x highest rank (padded)")
    _draw_line(unpadded, differing, fit.unpadded, lambda sample: sample.sum_ranks)
    unpadded.set_xlabel("sum of ranks (all adapters differ)")
    for axes in (padded, unpadded):
        axes.set_ylabel("ms that LoRA adds to a step")
    _draw_ours(ours, samples, fit)
    for axes in (padded, unpadded, ours):
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    return path


def _draw_line(
    axes: "Axes", samples: Sequence[LoraSample], line: LineFit, number_of: Callable[[LoraSample], int]
) -> None:
    numbers = [number_of(sample) for sample in samples]
    axes.plot(numbers, [sample.lora_ms for sample in samples], "o", markersize=3)
    ends = [0, max(numbers)]
    axes.plot(ends, [line.base_ms + line.slope_ms * end for end in ends], label=f"R² {line.r_squared:.3f}")


def _draw_ours(axes: "Axes", samples: Sequence[LoraSample], fit: LoraFit) -> None:
    for name, is_held_out in (("fitted", False), ("held out", True)):
        shown = [sample for sample in samples if (sample.kind == "held_out") == is_held_out]
        if shown:
            measured = [sample.lora_ms for sample in shown]
            axes.plot(measured, predicted_ms(fit.lora, shown), "o", markersize=3, label=name)
    longest = max(sample.lora_ms for sample in samples)
    axes.plot([0, longest], [0, longest], color="0.6", linewidth=1, label=f"R² {fit.r_squared:.3f}")
    axes.set_xlabel("measured: ms that LoRA adds to a step")
    axes.set_ylabel("predicted from different adapters' pages, rows and ranks")
