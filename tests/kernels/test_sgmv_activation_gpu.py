"""The activation that expands LoRA: on a GPU, or in Triton's interpreter on small shapes where there is none."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from punica_kernels.activation import gelu_and_mul, silu_and_mul
from punica_kernels.gpu.sgmv import shrink, workspace_numel
from punica_kernels.gpu.sgmv_activation import expand_and_activate
from punica_kernels.gpu.sgmv_config import activation_config, activation_expands
from punica_kernels.lora_table import LoraTable, LoraTableShape
from punica_kernels.low_rank import LowRankDelta

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
#: Relative Frobenius error; half precision rounds twice, the activation and the result.
TOLERANCES = {torch.float32: 1e-6, torch.float16: 4e-4}
GPU_TOLERANCES = {**TOLERANCES, torch.bfloat16: 4e-3}
#: Fixtures of this folder.
ScatterAdapters = Callable[..., tuple[list[list[int]], Tensor, Tensor]]
LoraDelta = Callable[["Case"], Tensor]
RelativeError = Callable[[Tensor, Tensor], float]
MakeCase = Callable[..., "Case"]
#: Rows of the table past the last segment.
SPARE_ROWS = 3


@dataclass
class Case:
    """Rows of segments, each with an adapter, in a buffer wider than they are."""

    indptr: list[int]
    pages: list[list[int]]
    a_pages: Tensor
    b_pages: Tensor
    x: Tensor
    out_offsets: tuple[int, int, int]
    gate_up: Tensor
    table: LoraTable
    reference: LoraDelta

    def delta(self) -> LowRankDelta:
        v = torch.full((workspace_numel(self.table.shape, 2),), torch.nan, device=DEVICE)
        shrink(v, self.x, self.a_pages, self.table)
        return LowRankDelta(v, self.b_pages, self.table)

    def new_out(self) -> Tensor:
        return torch.full_like(self.gate_up[:, : self.out_offsets[1]], torch.nan)

    def expected(self, *, gelu: bool) -> Tensor:
        gate, up = (self.gate_up.double() + self.reference(self)).chunk(2, dim=1)
        return (functional.gelu(gate, approximate="tanh") if gelu else functional.silu(gate)) * up


@pytest.fixture
def make_case(scatter_adapters: ScatterAdapters, lora_delta: LoraDelta) -> MakeCase:
    """make_case(rows of each segment, rank of its adapter, width of gate): adapters of 0 ranks are none."""

    def make(
        segment_rows: list[int], ranks: list[int], width: int, *, dtype: torch.dtype = torch.float32, h_in: int = 40
    ) -> Case:
        pages, a_pages, b_pages = scatter_adapters(
            ranks, dtype=dtype, h_in=h_in, slice_widths=(width, width), device=DEVICE
        )
        indptr = list(accumulate(segment_rows, initial=0))
        shape = LoraTableShape(indptr[-1] + SPARE_ROWS, len(ranks) + 1, max(2, *map(len, pages)))
        words = np.empty(shape.num_words, np.int32)
        shape.fill(words, indptr, pages)
        x, wide = (torch.randn(shape.max_rows, columns, device=DEVICE).to(dtype) for columns in (h_in, 2 * width + 8))
        table = LoraTable(torch.from_numpy(words).to(DEVICE), shape)
        return Case(indptr, pages, a_pages, b_pages, x, (0, width, 2 * width), wide[:, : 2 * width], table, lora_delta)

    return make


def check(case: Case, relative_error: RelativeError) -> None:
    """Both activations, over poisoned outputs: every row of the table is written."""
    tolerance = GPU_TOLERANCES[case.gate_up.dtype]
    for activate, gelu in ((silu_and_mul, False), (gelu_and_mul, True)):
        out = case.new_out()
        activate(out, case.gate_up, case.delta())
        assert relative_error(out, case.expected(gelu=gelu)) < tolerance


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(
    ("segment_rows", "ranks", "width"),
    [
        ([1, 17, 0, 2, 1, 1], [12, 24, 8, 0, 8, 0], 24),
        ([1] * 3, [16, 72, 136], 200),
        ([40, 1], [40, 8], 130),
        ([3], [0], 16),
    ],
)
def test_rows_prompts_and_rows_without_lora(
    make_case: MakeCase,
    relative_error: RelativeError,
    segment_rows: list[int],
    ranks: list[int],
    width: int,
    dtype: torch.dtype,
) -> None:
    check(make_case(segment_rows, ranks, width, dtype=dtype), relative_error)


@pytest.mark.parametrize("tile_programs", [1, 3])
def test_programs_take_tiles_in_turns(make_case: MakeCase, relative_error: RelativeError, tile_programs: int) -> None:
    """Also entries that share the columns of a tile, and those without rows behind them."""
    case = make_case([1, 20, 1, 3, 1], [8, 40, 0, 16, 8], 40)
    config = replace(activation_config(case.table.shape, 40), tile_programs=tile_programs)
    assert tile_programs < case.table.shape.max_tiles
    out = case.new_out()
    expand_and_activate(out, case.gate_up, case.delta(), gelu=False, config=config)
    assert relative_error(out, case.expected(gelu=False)) < TOLERANCES[torch.float32]


@pytest.mark.parametrize(("rows", "segments", "programs"), [(256, 256, 96), (128, 128, 96), (543, 33, 67)])
def test_many_decodes_take_turns_and_prompts_have_a_program_for_each_tile(
    rows: int, segments: int, programs: int
) -> None:
    assert activation_config(LoraTableShape(rows, segments, 16), 11008).tile_programs == programs


@pytest.mark.parametrize(
    ("rows", "segments", "rank_pages", "itemsize", "expands"),
    [
        *((64, 64, 16, 2, False), (96, 96, 16, 2, False), (128, 128, 16, 2, True), (256, 256, 16, 2, True)),
        *((159, 33, 16, 2, False), (543, 33, 16, 2, True), (2079, 33, 2, 2, True)),
        *((256, 256, 2, 2, False), (256, 256, 2, 4, True)),
    ],
)
def test_it_expands_for_many_rows_where_the_expand_takes_no_turns(
    rows: int, segments: int, rank_pages: int, itemsize: int, expands: bool
) -> None:
    assert activation_expands(LoraTableShape(rows, segments, rank_pages), itemsize) == expands


@pytest.mark.parametrize(
    ("argument", "shape"),
    [("out", (8, 23)), ("gate_up", (8, 46)), ("gate_up", (7, 48)), ("b_pages", (9, 4, 48)), ("v", (9,))],
)
def test_arguments_that_do_not_fit_are_named(make_case: MakeCase, argument: str, shape: tuple[int, ...]) -> None:
    case = make_case([4, 1], [16, 3], 24)
    delta = case.delta()
    values = {"out": case.new_out(), "gate_up": case.gate_up, "v": delta.v, "b_pages": delta.b_pages}
    values[argument] = torch.zeros(shape, device=DEVICE)
    with pytest.raises(ValueError, match=f"^{argument} must"):
        delta = LowRankDelta(values["v"], values["b_pages"], case.table)
        expand_and_activate(values["out"], values["gate_up"], delta, gelu=False)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_TOLERANCES)
@pytest.mark.parametrize("segment_rows", [[1] * 128, [128] + [0] * 127, [512] + [1] * 31, [2048, 1]])
def test_model_widths(
    make_case: MakeCase, relative_error: RelativeError, segment_rows: list[int], dtype: torch.dtype
) -> None:
    ranks = [(16, 8, 64, 0, 128, 5, 33, 12)[number % 8] for number in range(len(segment_rows))]
    check(make_case(segment_rows, ranks, 11008, dtype=dtype, h_in=4096), relative_error)
