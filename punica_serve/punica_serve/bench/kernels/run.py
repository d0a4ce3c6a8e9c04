"""`bench kernels`: the operators against goals, peers, torch and the machine's roofs.

Every operator is compared with what is right before it is timed, and a wrong one is an error, not a row.
"""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import torch
from rich.progress import Progress

from punica_serve.bench.kernels import (
    blog,
    comparison,
    fused,
    layout,
    linear,
    merge_attention,
    paged_attention,
    pair,
    ranks,
    roofline,
    sampling,
)
from punica_serve.bench.kernels.sections import Section
from punica_serve.bench.kernels.setting import KernelBench, KernelSettings
from punica_serve.bench.report import Draw, Report, TableData, machine
from punica_serve.engine.device_memory import open_device

#: One table and what draws it.
Measured = tuple[TableData, Draw]


def run(settings: KernelSettings, sections: tuple[Section, ...], device: str, progress: Progress) -> Report:
    """Measures the sections one after another; one that fails is named in the report, and the others go on."""
    on = open_device(device)
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


def _pair(bench: KernelBench) -> Measured:
    table = pair.measure(bench, _batches(bench, 1, 8, 32, 64))
    return table, partial(pair.draw, table)


def _roofline(bench: KernelBench) -> Measured:
    table, roof = roofline.measure(bench)
    return table, partial(roofline.draw, table, roof)


def _comparison(bench: KernelBench) -> Measured:
    table = comparison.measure(bench)
    return table, partial(comparison.draw, table)


def _ranks(bench: KernelBench) -> Measured:
    table = ranks.measure(bench)
    return table, partial(ranks.draw, table)


def _add_lora(bench: KernelBench) -> Measured:
    table = blog.measure(bench)
    return table, partial(blog.draw, table)


def _fused(bench: KernelBench) -> Measured:
    table = fused.measure(bench, (bench.settings.max_batch_size // 2, bench.settings.num_prefill_rows))
    return table, partial(fused.draw, table)


def _linear(bench: KernelBench) -> Measured:
    table = linear.measure(bench, _batches(bench, 1, 8, 32, 64))
    return table, partial(linear.draw, table)


def _paged_attention(bench: KernelBench) -> Measured:
    table = paged_attention.measure(bench)
    return table, partial(paged_attention.draw, table)


def _merge_attention(bench: KernelBench) -> Measured:
    table = merge_attention.measure(bench)
    return table, partial(merge_attention.draw, table)


def _sampling(bench: KernelBench) -> Measured:
    table = sampling.measure(bench)
    return table, partial(sampling.draw, table)


def _layouts(bench: KernelBench) -> Measured:
    table = layout.measure(bench, _batches(bench, 1, 32, 64))
    return table, partial(layout.draw, table)


_MEASURE: dict[Section, Callable[[KernelBench], Measured]] = {
    Section.PAIR: _pair,
    Section.ROOFLINE: _roofline,
    Section.COMPARISON: _comparison,
    Section.RANKS: _ranks,
    Section.ADD_LORA: _add_lora,
    Section.FUSED: _fused,
    Section.LINEAR: _linear,
    Section.PAGED_ATTENTION: _paged_attention,
    Section.MERGE_ATTENTION: _merge_attention,
    Section.SAMPLING: _sampling,
    Section.LAYOUTS: _layouts,
}


def _batches(bench: KernelBench, *sizes: int) -> tuple[int, ...]:
    """The sizes up to the largest that was asked for."""
    return tuple(size for size in sizes if size <= bench.settings.max_batch_size)
