"""Shrink and expand of each group of stacked projections of a Llama, for few and for many rows.

Each writes what the engine has it write: the expand a new delta. Both wait for the launch before them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from punica_kernels.lora_table import LoraTable, LoraTableShape
from punica_kernels.segments import SegmentIndex
from punica_kernels.sgmv import sgmv_expand, sgmv_shrink
from punica_serve.base_model.lora_layout import LORA_PAGE_RANKS, USUAL_LORA_RANK
from punica_serve.bench.kernels.accuracy import relative_error
from punica_serve.bench.kernels.case import Case
from punica_serve.bench.kernels.operators import ERROR_LIMITS, LayerCall
from punica_serve.bench.kernels.setting import KernelBench
from punica_serve.bench.report import Column, TableData, Value, numbers
from punica_serve.workload import Population

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = (
    Column("group", "group"),
    Column("case", "case"),
    Column("rows", "rows"),
    Column("shrink_us", "shrink, µs", ".2f"),
    Column("expand_us", "expand, µs", ".2f"),
    Column("pair_us", "pair, µs", ".2f"),
    Column("floor_us", "floor, µs", ".2f"),
    Column("times_floor", "x floor", ".2f"),
)
_RANK = 16
#: Layers with separate weights in one graph; inputs and outputs are the same.
_NUM_LAYERS = 4
_DECODE_ROWS = (64, 128, 256)
_PREFILL_ROWS = (512, 2048)
#: Decodes for which the engine's tables have room beside a prefill.
_BESIDE_PREFILL = 31


@dataclass(frozen=True, slots=True)
class Group:
    """Stacked projections that read one input."""

    name: str
    h_in: int
    widths: tuple[int, ...]

    @property
    def h_out(self) -> int:
        return sum(self.widths)

    @property
    def out_offsets(self) -> tuple[int, ...]:
        return tuple(accumulate(self.widths, initial=0))

    def num_bytes(self, case: Case, itemsize: int) -> int:
        """The least bytes: every adapter once, x read, the delta written."""
        weights = sum(case.ranks) * (len(self.widths) * self.h_in + self.h_out)
        return (weights + case.num_rows * (self.h_in + self.h_out)) * itemsize


def groups_of(hidden: int, intermediate: int) -> tuple[Group, ...]:
    """The groups of a Llama layer whose keys and values are as wide as its queries."""
    return (
        Group("qkv", hidden, (hidden,) * 3),
        Group("o", hidden, (hidden,)),
        Group("gate_up", hidden, (intermediate,) * 2),
        Group("down", intermediate, (hidden,)),
    )


def cases() -> Iterator[Case]:
    """Decodes that share an adapter or do not, and prefills: of one prompt, beside decodes too, and of four."""
    for rows in _DECODE_ROWS:
        for population in (Population.IDENTICAL, Population.DISTINCT):
            yield Case.of(population, rows, _RANK)
    for rows in _PREFILL_ROWS:
        yield Case("one prompt", (rows,), (_RANK,))
        lengths = (rows, *[1] * _BESIDE_PREFILL)
        yield Case("and decodes", lengths, (_RANK,) * len(lengths))
        yield Case("four prompts", (rows // 4,) * 4, (_RANK,) * 4)


def measure(bench: KernelBench) -> TableData:
    """Checks every cell against float64, then times it."""
    settings = bench.settings
    groups = groups_of(settings.hidden_size, settings.intermediate_size)
    bench.begin("lora-groups", 3 * len(groups) * len([*cases()]))
    return TableData(
        "lora_groups",
        f"LoRA of rank {_RANK} by group, {settings.dtype}, µs {bench.how} on cold weights",
        COLUMNS,
        [row for group in groups for row in _measure(bench, group)],
        notes=("floor: bytes of adapters, x and the delta over the measured copy rate, at least two empty kernels",),
    )


def _measure(bench: KernelBench, group: Group) -> Iterator[tuple[Value, ...]]:
    num_pages = max(bench.pages_for(case.num_adapters, _RANK) for case in cases())
    a_shape = (num_pages, _NUM_LAYERS, len(group.widths), LORA_PAGE_RANKS, group.h_in)
    a = torch.empty(a_shape, dtype=bench.dtype, device=bench.device).normal_(std=group.h_in**-0.5)
    b_shape = (num_pages, _NUM_LAYERS, LORA_PAGE_RANKS, group.h_out)
    b = torch.empty(b_shape, dtype=bench.dtype, device=bench.device).normal_(std=0.25)
    for case in cases():
        operator = _Operator(group, case, a, b)
        operator.check()
        shrink_us, expand_us, pair_us = map(bench.measure_us, operator.calls())
        floor_us = bench.floor_us(group.num_bytes(case, bench.dtype.itemsize), num_launches=2)
        times_floor = pair_us / floor_us if floor_us else None
        yield (group.name, case.name, case.num_rows, shrink_us, expand_us, pair_us, floor_us, times_floor)


class _Operator:
    """One group's LoRA on one batch."""

    def __init__(self, group: Group, case: Case, a: Tensor, b: Tensor) -> None:
        """``a``: [pages, layers, slices, 8, h_in]; ``b``: [pages, layers, 8, h_out]."""
        self._group, self._case, self._a, self._b = group, case, a, b
        self._pages = torch.randperm(len(a)).view(-1, _RANK // LORA_PAGE_RANKS).tolist()[: case.num_adapters]
        num_rows = max(case.num_rows, _num_prefill_rows(case) + _BESIDE_PREFILL if _is_prefill(case) else 0)
        self._x = torch.randn(num_rows, group.h_in, dtype=a.dtype, device=a.device)
        self._delta = torch.empty(num_rows, group.h_out, dtype=a.dtype, device=a.device)
        self.shrink, self.expand = self._on_gpu() if a.is_cuda else self._on_cpu()

    def pair(self, layer: int) -> None:
        self.shrink(layer)
        self.expand(layer)

    def calls(self) -> list[list[Callable[[], object]]]:
        """The calls of all layers: of the shrink, of the expand, of both."""
        return [[partial(run, layer) for layer in range(_NUM_LAYERS)] for run in (self.shrink, self.expand, self.pair)]

    def check(self) -> None:
        """Raises ArithmeticError if the delta is wrong."""
        self._delta.fill_(torch.nan)
        self.pair(0)
        expected = torch.zeros_like(self._delta, dtype=torch.float64)
        for (start, end), own in zip(pairwise(self._case.indptr), self._pages, strict=True):
            for s, (left, right) in enumerate(pairwise(self._group.out_offsets)):
                a, b = self._a[own, 0, s].double().flatten(0, 1), self._b[own, 0].double().flatten(0, 1)
                expected[start:end, left:right] = self._x[start:end].double() @ a.T @ b[:, left:right]
        error = relative_error(self._delta, expected)
        if error > ERROR_LIMITS[self._a.dtype]:
            case = f"{self._group.name}, {self._case.name}, {self._case.num_rows} rows"
            raise ArithmeticError(f"LoRA of {case}: error {error:.2e}")

    def _on_gpu(self) -> tuple[LayerCall, LayerCall]:
        """As in the engine's tables: room for an adapter in each row of decodes, for decodes beside a prefill."""
        from punica_kernels.gpu import sgmv

        case = self._case
        num_prompts = sum(rows > 1 for rows in case.lengths)
        num_segments = _BESIDE_PREFILL + 2 * num_prompts if _is_prefill(case) else case.num_rows
        shape = LoraTableShape(len(self._x), num_segments, USUAL_LORA_RANK // LORA_PAGE_RANKS)
        words = np.empty(shape.num_words, np.int32)
        shape.fill(words, case.indptr, self._pages)
        table = LoraTable(torch.from_numpy(words).to(self._x.device), shape)
        offsets, num_slices = self._group.out_offsets, len(self._group.widths)
        v = torch.full((sgmv.workspace_numel(shape, num_slices),), torch.nan, device=self._x.device)

        def shrink(layer: int) -> None:
            sgmv.shrink(v, self._x, self._a[:, layer], table)

        def expand(layer: int) -> None:
            sgmv.expand(self._delta, v, self._b[:, layer], offsets, table, accumulate=False)

        return shrink, expand

    def _on_cpu(self) -> tuple[LayerCall, LayerCall]:
        indptr = [*self._case.indptr, len(self._x)]
        index = SegmentIndex.build(indptr, [*self._pages, []])
        v = torch.full((len(self._x), len(self._group.widths), _RANK), torch.nan)

        def shrink(layer: int) -> None:
            sgmv_shrink(v, self._x, self._a[:, layer], index)

        def expand(layer: int) -> None:
            sgmv_expand(self._delta, v, self._b[:, layer], self._group.out_offsets, index, accumulate=False)

        return shrink, expand


def _is_prefill(case: Case) -> bool:
    return case.num_rows > max(_DECODE_ROWS)


def _num_prefill_rows(case: Case) -> int:
    return sum(rows for rows in case.lengths if rows > 1)


def draw(table: TableData, figure: "Figure") -> None:
    """Draws a panel for each group, with bars of shrink and expand and the floor as strokes."""
    records = table.records
    groups = list(dict.fromkeys(record["group"] for record in records))
    figure.set_size_inches(4 * len(groups), 5)
    for axes, group in zip(figure.subplots(1, len(groups), squeeze=False)[0], groups, strict=True):
        own = [record for record in records if record["group"] == group]
        places = [f"{record['case']}\n{record['rows']}" for record in own]
        shrinks = numbers(own, "shrink_us")
        axes.bar(places, shrinks, label="shrink")
        axes.bar(places, numbers(own, "expand_us"), bottom=shrinks, label="expand")
        axes.scatter(places, numbers(own, "floor_us"), marker="_", s=200, c="k", label="floor", zorder=3)
        axes.tick_params(axis="x", rotation=90, labelsize=7)
        axes.set_title(f"{group}", fontsize=10)
    axes.legend()
