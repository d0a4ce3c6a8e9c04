"""The operator benchmark of Punica's first announcement: add_lora(y, x, A, B, I) over 50 LoRA models.

y[i] += x[i] @ A[I[i]] @ B[I[i]], 4096 -> 16 -> 11008, random I, at batch 1 to 32; compared with torch: a loop over
rows, Gather-BMM, and BMM on weights gathered beforehand.
"""

import random
from itertools import groupby
from typing import TYPE_CHECKING

from punica_serve.bench.kernels.case import Case
from punica_serve.bench.kernels.curves import label_batches
from punica_serve.bench.kernels.operators import Rows, Sgmv, checked
from punica_serve.bench.kernels.setting import KernelBench
from punica_serve.bench.kernels.torch_operators import TorchOperators
from punica_serve.bench.report import Column, TableData, Value, numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RANK = 16
NUM_MODELS = 50
MAX_BATCH = 32
COLUMNS = (
    Column("batch", "batch"),
    Column("adapters", "adapters"),
    Column("sgmv", "add_lora, µs", ".2f"),
    Column("loop", "loop, µs", ".2f"),
    Column("gather-bmm", "gather-bmm, µs", ".2f"),
    Column("bmm", "bmm, µs", ".2f"),
)


def random_case(num_rows: int) -> Case:
    """Rows with random models, sorted by model as in a step."""
    picks = random.Random(num_rows).choices(range(NUM_MODELS), k=num_rows)
    lengths = tuple(len(list(rows)) for _, rows in groupby(sorted(picks)))
    return Case("random", lengths, (RANK,) * len(lengths))


def measure(bench: KernelBench) -> TableData:
    """Checks every cell against float64, then times it."""
    batch_sizes = [batch for batch in bench.settings.batch_sizes if batch <= MAX_BATCH]
    bench.begin("add_lora", len(batch_sizes) * 4)
    weights = bench.weights(bench.pages_for(NUM_MODELS, RANK), h_out=bench.settings.intermediate_size)
    rows: list[tuple[Value, ...]] = []
    for batch in batch_sizes:
        case = random_case(batch)
        own = Rows(batch, weights.h_in, weights.h_out, bench.dtype, bench.device)
        makers = TorchOperators(weights, case, own).operators
        calls = [Sgmv(weights, case, own).pair, *(makers[name]() for name in ("loop", "gather-bmm", "bmm"))]
        for column, call in zip(COLUMNS[2:], calls, strict=True):
            checked(call, weights, case, own, column.key)
        rows.append((batch, case.num_adapters, *map(bench.time_us, calls)))
    title = f"add_lora(y, x, A, B, I), {weights.h_in} -> {RANK} -> {weights.h_out}, {NUM_MODELS} LoRA models"
    return TableData("add_lora", title, COLUMNS, rows)


def draw(table: TableData, figure: "Figure") -> None:
    """Draws a curve for each operator."""
    axes = figure.subplots()
    batch_sizes = [int(record["batch"] or 0) for record in table.records]
    for column in table.columns[2:]:
        axes.plot(batch_sizes, numbers(table.records, column.key), marker="o", label=column.title)
    label_batches(axes, batch_sizes)
    axes.set_yscale("log")
    axes.set_ylabel("µs")
    axes.set_title(table.title, fontsize=11)
    axes.legend()
