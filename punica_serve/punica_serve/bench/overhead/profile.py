"""A torch.profiler trace of some decode steps with LoRA, and its kernels by time."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from punica_serve.bench.overhead.steady import SteadyDecode
from punica_serve.bench.report import Column, TableData, Value
from punica_serve.engine.engine import Engine
from punica_serve.protocol import AdapterRef

#: LoRA's kernel names in traces.
LORA_KERNELS = ("sgmv_shrink", "sgmv_expand")
_MAX_ROWS = 20
_MAX_NAME = 90
COLUMNS = (
    Column("kernel", "kernel"),
    Column("launches", "launches per step", ".1f"),
    Column("us", "µs a step", ".1f"),
    Column("share", "share of all kernels", ".1%"),
)


def trace(engine: Engine, adapters: Sequence[AdapterRef | None], num_steps: int, path: Path) -> TableData:
    """Writes a Chrome trace (gzip) to ``path``. On a GPU the table holds its kernels, else the host's operators."""
    on_gpu = engine.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    path.parent.mkdir(parents=True, exist_ok=True)
    with SteadyDecode(engine, adapters) as steady, profile(activities=activities, acc_events=True) as profiler:
        steady.run(num_steps)
        if on_gpu:
            torch.cuda.synchronize()
    profiler.export_chrome_trace(str(path))
    return _table(profiler, num_steps, on_gpu)


def missing_kernels(table: TableData) -> list[str]:
    """The LORA_KERNELS that are missing in the trace."""
    names = [str(record["kernel"]) for record in table.records]
    return [wanted for wanted in LORA_KERNELS if not any(wanted in name for name in names)]


def _table(profiler: profile, num_steps: int, on_gpu: bool) -> TableData:
    device = "CUDA" if on_gpu else "CPU"
    totals: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for event in profiler.key_averages():
        if event.device_type.name == device:
            microseconds = event.self_device_time_total if on_gpu else event.self_cpu_time_total
            launches, total = totals[event.key]
            totals[event.key] = (launches + event.count, total + microseconds)
    total_us = sum(microseconds for _, microseconds in totals.values()) or 1.0
    longest = sorted(totals.items(), key=lambda item: -item[1][1])
    # LoRA's kernels are shown however short they are.
    shown = [item for place, item in enumerate(longest) if place < _MAX_ROWS or item[0] in LORA_KERNELS]
    rows: list[tuple[Value, ...]] = [
        (name[:_MAX_NAME], launches / num_steps, microseconds / num_steps, microseconds / total_us)
        for name, (launches, microseconds) in shown
    ]
    what = "Kernels" if on_gpu else "Operators of the host"
    return TableData("kernels", f"{what} of a decode step with LoRA, the longest first", COLUMNS, rows)
