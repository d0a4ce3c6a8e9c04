"""A layer's dense projections for few rows, as the engine calls them, against torch's own."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from punica_kernels.linear import linear
from punica_serve.bench.blas import blas_library
from punica_serve.bench.kernels.accuracy import checked_error
from punica_serve.bench.kernels.bars import draw_bars
from punica_serve.bench.kernels.setting import KernelBench
from punica_serve.bench.report import Column, TableData, Value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = (
    Column("projection", "projection"),
    Column("num_in", "in"),
    Column("num_out", "out"),
    Column("rows", "rows"),
    Column("us", "µs", ".2f"),
    Column("no_pdl_us", "no PDL", ".2f"),
    Column("torch_us", "torch", ".2f"),
    Column("torch_lt_us", "torch, cuBLASLt", ".2f"),
    Column("times_faster", "x faster", ".2f"),
    Column("floor_us", "floor", ".2f"),
    Column("times_floor", "x floor", ".2f"),
    Column("error", "error", ".1e"),
)


class DenseProduct(NamedTuple):
    """One of a layer's dense products."""

    name: str
    num_in: int
    num_out: int
    #: Whether the operator that reads the result can add split-K partial sums itself.
    split_k: bool


def projections(hidden: int, intermediate: int) -> tuple[DenseProduct, ...]:
    """The projections of a Llama layer without grouped heads."""
    return (
        DenseProduct("qkv", hidden, 3 * hidden, split_k=True),
        DenseProduct("o", hidden, hidden, split_k=True),
        DenseProduct("gate_up", hidden, 2 * intermediate, split_k=False),
        DenseProduct("down", intermediate, hidden, split_k=True),
    )


def measure(bench: KernelBench, row_counts: tuple[int, ...]) -> TableData:
    """Checks every cell against float64, then times it."""
    settings = bench.settings
    found = projections(settings.hidden_size, settings.intermediate_size)
    bench.begin("linear", 4 * len(found) * len(row_counts))
    rows = [row for projection in found for row in _measure(bench, projection, row_counts)]
    return TableData(
        "linear",
        f"y = x W^T, hidden {settings.hidden_size}, {settings.dtype}, µs {bench.how} on cold weights",
        COLUMNS,
        rows,
        notes=(
            "qkv, o and down may leave float32 partial sums, which the operator that reads them adds; no PDL: starts"
            " when the launch before it has ended, as torch's do",
            "x faster: than the faster of torch's two; floor: bytes over the measured copy rate, or operations over the"
            " rate of a large product",
        ),
    )


def _measure(bench: KernelBench, projection: DenseProduct, row_counts: tuple[int, ...]) -> list[tuple[Value, ...]]:
    """The cells of one projection, which share its weights."""
    _, num_in, num_out, _ = projection
    weights = torch.empty(bench.settings.num_layers, num_out, num_in, dtype=bench.dtype, device=bench.device)
    weights.normal_(std=num_in**-0.5)
    return [_measure_rows(bench, projection, weights, num_rows) for num_rows in row_counts]


def _measure_rows(bench: KernelBench, projection: DenseProduct, weights: Tensor, num_rows: int) -> tuple[Value, ...]:
    name, num_in, num_out, split_k = projection
    x = torch.randn(num_rows, num_in, dtype=bench.dtype, device=bench.device)
    expected = x.double() @ weights[-1].double().T

    def own(*, pdl: bool) -> Callable[[int], Tensor]:
        return lambda layer: linear(x, weights[layer], split_k=split_k, pdl=pdl)

    def torch_own(layer: int) -> Tensor:
        return functional.linear(x, weights[layer])

    error = checked_error(_whole(own(pdl=True)(-1)), expected, f"linear, {name} of {num_rows} rows")
    checked_error(torch_own(-1), expected, f"torch, {name} of {num_rows} rows")
    us, no_pdl_us = bench.time_us(own(pdl=True)), bench.time_us(own(pdl=False))
    with blas_library("default"):
        torch_us = bench.time_us(torch_own)
    with blas_library("cublaslt"):
        torch_lt_us = bench.time_us(torch_own)
    num_bytes = (num_out * num_in + num_rows * (num_in + num_out)) * bench.dtype.itemsize
    floor_us = bench.floor_us(num_bytes, flop=2 * num_rows * num_in * num_out)
    return (
        *(name, num_in, num_out, num_rows, us, no_pdl_us, torch_us, torch_lt_us),
        *(min(torch_us, torch_lt_us) / us, floor_us, us / floor_us, error),
    )


def _whole(y: Tensor) -> Tensor:
    return y.sum(0) if y.dim() == 3 else y


def draw(table: TableData, figure: "Figure") -> None:
    """Draws bars, a group for each projection and number of rows."""
    series = {"us": "this kernel", "torch_us": "torch", "torch_lt_us": "torch, cuBLASLt"}
    draw_bars(table, figure, series, lambda record: f"{record['projection']}\n{record['rows']} rows")
