"""A layer's fused operators against plain torch (the paper's norm: 110 µs -> 4 µs), in a CUDA graph and launched."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from punica_kernels.activation import silu_and_mul
from punica_kernels.bench.timing import launched_us
from punica_kernels.block_end import BlockEnd
from punica_kernels.norm import add_rms_norm, rms_norm
from punica_kernels.rotary import rotary_append, rotary_tables
from punica_kernels.sampled_tokens import fill_sampled
from punica_serve.bench.kernels import unfused
from punica_serve.bench.kernels.accuracy import checked_error
from punica_serve.bench.kernels.setting import HEAD_DIM, KernelBench
from punica_serve.bench.report import Column, TableData, Value, numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE_SIZE, EPS = 16, 1e-5
COLUMNS = (
    Column("operator", "operator"),
    Column("rows", "rows"),
    Column("fused_us", "fused, µs", ".2f"),
    Column("torch_us", "torch, µs", ".2f"),
    Column("times_faster", "x faster", ".1f"),
    Column("fused_launched_us", "fused, launched", ".1f"),
    Column("torch_launched_us", "torch, launched", ".1f"),
)


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator in both forms. ``fused`` and ``plain`` return their results."""

    name: str
    fused: Callable[[], Tensor]
    plain: Callable[[], Tensor]


def measure(bench: KernelBench, row_counts: tuple[int, ...]) -> TableData:
    """Compares both forms, then times them. Inputs are in the cache, as if just written."""
    operators = {num_rows: make_operators(bench, num_rows) for num_rows in row_counts}
    bench.begin("fused", 2 * sum(map(len, operators.values())))
    rows = [_measure(bench, op, num_rows) for num_rows, found in operators.items() for op in found]
    return TableData(
        "fused",
        f"Fused operators, hidden {bench.settings.hidden_size}, {bench.settings.dtype}: {bench.how}, and launched",
        COLUMNS,
        rows,
        notes=("the paper, on an A100: norm 110 µs unfused, 4 µs fused",),
    )


def make_operators(bench: KernelBench, num_rows: int) -> list[Operator]:
    """Norm, norm with residual, activation, rotary with append, on random rows; and the placement of sampled tokens."""

    def make(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=bench.dtype, device=bench.device)

    hidden, intermediate = bench.settings.hidden_size, bench.settings.intermediate_size
    return [
        _norm(make(num_rows, hidden), make(hidden)),
        _add_norm(make(num_rows, hidden), make(num_rows, hidden), make(hidden)),
        _silu(make(num_rows, 2 * intermediate)),
        _rotary(
            make(num_rows, 3 * hidden), make(2, -(-num_rows // PAGE_SIZE), PAGE_SIZE, hidden // HEAD_DIM, HEAD_DIM)
        ),
        _fill_sampled(num_rows, bench.device),
    ]


def _norm(x: Tensor, weight: Tensor) -> Operator:
    out = torch.empty_like(x)

    def fused() -> Tensor:
        rms_norm(out, x, weight, EPS)
        return out

    return Operator("rms_norm", fused, lambda: unfused.rms_norm(x, weight, EPS))


def _add_norm(x: Tensor, residual: Tensor, weight: Tensor) -> Operator:
    out, plain_residual = torch.empty_like(x), residual.clone()

    def fused() -> Tensor:
        add_rms_norm(BlockEnd(out, x, residual, weight, EPS))
        return out

    return Operator("add_rms_norm", fused, lambda: unfused.add_rms_norm(x, plain_residual, weight, EPS))


def _silu(gate_up: Tensor) -> Operator:
    out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)

    def fused() -> Tensor:
        silu_and_mul(out, gate_up)
        return out

    return Operator("silu_and_mul", fused, lambda: unfused.silu_and_mul(gate_up))


def _rotary(qkv: Tensor, cache: Tensor) -> Operator:
    keys, values = cache
    num_rows, heads, head_dim = len(qkv), keys.shape[2], keys.shape[3]
    frequencies = 10000.0 ** -(torch.arange(0, head_dim, 2, device=qkv.device) / head_dim)
    cos, sin = rotary_tables(frequencies, max(num_rows, 64))
    positions = torch.arange(num_rows, device=qkv.device)
    slot_mapping = torch.randperm(keys.shape[0] * keys.shape[1], device=qkv.device)[:num_rows]
    q = qkv.new_empty(num_rows, heads, head_dim)

    def fused() -> Tensor:
        rotary_append(q, qkv, positions, cos, sin, keys, values, slot_mapping)
        return q

    plain = partial(unfused.rotary_append, qkv, positions, cos, sin, keys, values, slot_mapping)
    return Operator("rotary_append", fused, plain)


def _fill_sampled(num_rows: int, device: torch.device) -> Operator:
    """Every other row has a token that the step before has sampled."""
    draws = torch.randint(1, 1 << 15, (num_rows,), device=device)
    token_ids = torch.randint(1, 1 << 15, (num_rows,), dtype=torch.int32, device=device)
    sources = torch.arange(num_rows, dtype=torch.int32, device=device)
    sources[1::2] = -1
    plain_ids = token_ids.clone()

    def fused() -> Tensor:
        fill_sampled(token_ids, sources, draws)
        return token_ids

    return Operator("place_drawn", fused, lambda: unfused.fill_sampled(plain_ids, sources, draws))


def _measure(bench: KernelBench, operator: Operator, num_rows: int) -> tuple[Value, ...]:
    checked_error(operator.fused(), operator.plain().double(), f"{operator.name} of {num_rows} rows, against torch")
    fused_us, torch_us = bench.time_us(lambda _: operator.fused()), bench.time_us(lambda _: operator.plain())
    launched = (launched_us([call] * 16, bench.device) for call in (operator.fused, operator.plain))
    return (operator.name, num_rows, fused_us, torch_us, torch_us / fused_us, *launched)


def draw(table: TableData, figure: "Figure") -> None:
    """Draws bars, a group for each operator and number of rows."""
    axes = figure.subplots()
    places = range(len(table.rows))
    for number, (key, label) in enumerate((("fused_us", "fused"), ("torch_us", "torch, unfused"))):
        bars = axes.bar([place + 0.4 * number for place in places], numbers(table.records, key), 0.4, label=label)
        axes.bar_label(bars, fmt="{:.1f}", fontsize=8)
    labels = [f"{record['operator']}\n{record['rows']} rows" for record in table.records]
    axes.set_xticks([place + 0.2 for place in places], labels, fontsize=8)
    axes.set_ylabel("µs")
    axes.set_title(table.title, fontsize=10)
    axes.legend()
