"""`bench kernels`: the operators against goals, peers, torch and the hardware's limits.

Every operator is checked for correctness before it is timed; a wrong one is an error, not a row.
"""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import torch
from rich.progress import Progress

from punica_serve.bench.kernels import (
    blog,
    comparison,
    fused,
    layout,
    linear,
    lora_groups,
    paged_attention,
    pair,
    ranks,
    roofline,
    sampling,
)
from punica_serve.bench.kernels.sections import Section
from punica_serve.bench.kernels.setting import KernelBench, KernelSettings
from punica_serve.bench.report import Draw, Report, TableData, machine
from punica_serve.engine.memory.device_memory import open_device

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: A table and the function that draws it.
Measured = tuple[TableData, Draw]
Measure = Callable[[KernelBench], Measured]


def run(settings: KernelSettings, sections: tuple[Section, ...], device: str, progress: Progress) -> Report:
    """Measures the sections one after another. The report names sections that failed; the others go on.

    Raises ConfigError for a device that can't be used, and for sizes that take too long on a CPU.
    """
    on = open_device(device)
    if on.type == "cpu":
        settings.check_cpu()
    measured: dict[Section, Measured] = {}
    failures: list[str] = []
    with torch.inference_mode():
        bench = KernelBench(settings, on, progress)
        for section in (section for section in Section if section in sections):
            try:
                measured[section] = _MEASURE[section](bench)
            except (ArithmeticError, RuntimeError) as error:
                failures.append(f"{section}: {error}")
    return Report(
        "kernels",
        machine(device),
        {**asdict(settings), "sections": list(sections)},
        [table for table, _ in measured.values()],
        {section.value: draw for section, (_, draw) in measured.items()},
        {"copy, bytes/s": bench.copy_bytes_per_s, "empty kernel in a graph, µs": bench.empty_us},
        failures,
    )


def _section(measure: Callable[[KernelBench], TableData], draw: Callable[[TableData, "Figure"], None]) -> Measure:
    """A section whose picture needs only its table."""

    def measured(bench: KernelBench) -> Measured:
        table = measure(bench)
        return table, partial(draw, table)

    return measured


def _roofline(bench: KernelBench) -> Measured:
    table, roof = roofline.measure(bench)
    return table, partial(roofline.draw, table, roof)


def _half_batch(bench: KernelBench) -> int:
    return max(bench.settings.max_batch_size // 2, 1)


def _fused(bench: KernelBench) -> TableData:
    return fused.measure(bench, (_half_batch(bench), bench.settings.num_prefill_rows))


def _sampling(bench: KernelBench) -> TableData:
    vocab_sizes = sampling.VOCAB_SIZES if bench.device.type == "cuda" else sampling.VOCAB_SIZES[:1]
    return sampling.measure(bench, (_half_batch(bench), 4 * bench.settings.max_batch_size), vocab_sizes)


def _batches(bench: KernelBench, *sizes: int) -> tuple[int, ...]:
    """The sizes up to the largest one requested."""
    return tuple(size for size in sizes if size <= bench.settings.max_batch_size)


_MEASURE: dict[Section, Measure] = {
    Section.PAIR: _section(lambda bench: pair.measure(bench, _batches(bench, 1, 8, 32, 64)), pair.draw),
    Section.ROOFLINE: _roofline,
    Section.COMPARISON: _section(comparison.measure, comparison.draw),
    Section.RANKS: _section(ranks.measure, ranks.draw),
    Section.ADD_LORA: _section(blog.measure, blog.draw),
    Section.FUSED: _section(_fused, fused.draw),
    Section.LINEAR: _section(lambda bench: linear.measure(bench, _batches(bench, 1, 8, 32, 64)), linear.draw),
    Section.PAGED_ATTENTION: _section(paged_attention.measure, paged_attention.draw),
    Section.SAMPLING: _section(_sampling, sampling.draw),
    Section.LAYOUTS: _section(lambda bench: layout.measure(bench, _batches(bench, 1, 32, 64)), layout.draw),
    Section.LORA_GROUPS: _section(lora_groups.measure, lora_groups.draw),
}
