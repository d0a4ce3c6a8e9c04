"""Decode steps over the highest and the average rank of their batch (CaraServe, figure 4)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from rich.progress import Progress

from punica_serve.bench.lora_samples import measure_lora
from punica_serve.bench.report import Column, Report, TableData, machine
from punica_serve.bench.subject import Subject
from punica_serve.performance.lora_fit import LoraSample

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = (
    Column("rows", "batch", "d"),
    Column("adapters", "adapters", "d"),
    Column("max_rank", "highest rank", "d"),
    Column("average_rank", "average rank", ",.1f"),
    Column("base_ms", "without LoRA ms", ",.3f"),
    Column("step_ms", "step ms", ",.3f"),
)


@dataclass(frozen=True, slots=True)
class DecodeRanksSettings:
    """The options."""

    batch_sizes: tuple[int, ...] = (1, 8, 16, 24, 32)
    #: Tokens of each request.
    num_context_tokens: int = 128


def measure_all(subject: Subject, settings: DecodeRanksSettings, progress: Progress) -> Report:
    """Batches of equal, shared and mixed ranks, as `punica-serve profile` measures them."""
    samples = measure_lora(subject, settings.batch_sizes, settings.num_context_tokens, progress)
    return make_report(subject, settings, samples)


def make_report(subject: Subject, settings: DecodeRanksSettings, samples: Sequence[LoraSample]) -> Report:
    """One row, and one point, for each batch."""
    rows = [
        (own.num_rows, own.num_adapters, own.max_rank, average_rank(own), own.base_ms, own.step_ms)
        for own in sorted(samples, key=lambda own: (own.num_rows, own.max_rank, own.sum_ranks))
    ]
    title = f"decode-ranks: {subject.title}, {settings.num_context_tokens} tokens of context"
    return Report(
        name="decode-ranks",
        machine=machine(str(subject.device)),
        settings={**asdict(settings), "model": subject.title},
        tables=[TableData("steps", title, _COLUMNS, rows)],
        figures={"": partial(_draw, samples=samples, title=title)},
    )


def average_rank(sample: LoraSample) -> float:
    """Over the rows of a batch."""
    return sample.sum_ranks / sample.num_rows


def _draw(figure: "Figure", *, samples: Sequence[LoraSample], title: str) -> None:
    """A point for each batch, with a colour for each size."""
    figure.set_size_inches(10, 4)
    figure.suptitle(title)
    highest, average = figure.subplots(1, 2)
    for size in sorted({own.num_rows for own in samples}):
        own = [sample for sample in samples if sample.num_rows == size]
        times_ms = [sample.step_ms for sample in own]
        highest.plot([sample.max_rank for sample in own], times_ms, "o", markersize=3, label=f"batch of {size}")
        average.plot([average_rank(sample) for sample in own], times_ms, "o", markersize=3, label=f"batch of {size}")
    for axes, what in ((highest, "highest rank of the batch"), (average, "average rank of the batch")):
        axes.set_xlabel(what)
        axes.set_ylabel("ms of a decode step")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8)
