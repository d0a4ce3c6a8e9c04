"""The activation that expands LoRA: on a GPU, or in Triton's interpreter on small shapes where there is none."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lora_cases import DEVICE, TableCase, make_case
from punica_kernels.activation import gelu_and_mul, silu_and_mul
from punica_kernels.gpu.sgmv import shrink
from punica_kernels.gpu.sgmv_activation import expand_and_activate
from punica_kernels.gpu.sgmv_config import activation_config, activation_expands
from punica_kernels.lora_table import LoraTable, LoraTableShape
from punica_kernels.low_rank import LowRankDelta

#: Relative Frobenius error; half precision rounds twice, the activation and the result.
TOLERANCES = {torch.float32: 1e-6, torch.float16: 5e-4}
GPU_TOLERANCES = {**TOLERANCES, torch.bfloat16: 4e-3}
RelativeError = Callable[[Tensor, Tensor], float]


@dataclass
class Case:
    """LoRA of gate and up, whose sums are in a buffer wider than they are."""

    lora: TableCase
    gate_up: Tensor

    @property
    def table(self) -> LoraTable:
        return self.lora.table

    def delta(self) -> LowRankDelta:
        shrink(self.lora.v, self.lora.x, self.lora.a_pages, self.table)
        return LowRankDelta(self.lora.v, self.lora.b_pages, self.table)

    def new_out(self) -> Tensor:
        return torch.full_like(self.gate_up[:, : self.lora.out_offsets[1]], torch.nan)

    def expected(self, *, gelu: bool) -> Tensor:
        gate, up = (self.gate_up.double() + self.lora.expected_delta()).chunk(2, dim=1)
        return (functional.gelu(gate, approximate="tanh") if gelu else functional.silu(gate)) * up


def gated_case(
    segment_rows: list[int], ranks: list[int], width: int, *, dtype: torch.dtype = torch.float32, h_in: int = 40
) -> Case:
    """As ``make_case``. ``width``: of gate."""
    lora = make_case(segment_rows, ranks, dtype=dtype, h_in=h_in, slice_widths=(width, width))
    return Case(lora, functional.pad(lora.y, (0, 8))[:, : 2 * width])


def check(case: Case, relative_error: RelativeError) -> None:
    """Both activations, over poisoned outputs: every row of the table is written."""
    tolerance = GPU_TOLERANCES[case.gate_up.dtype]
    for activate, gelu in ((silu_and_mul, False), (gelu_and_mul, True)):
        out = case.new_out()
        activate(out, case.gate_up, case.delta())
        assert relative_error(out, case.expected(gelu=gelu)) < tolerance


@pytest.mark.parametrize(
    ("segment_rows", "ranks", "width", "dtype"),
    [
        *(([1, 17, 0, 2, 1, 1], [12, 24, 8, 0, 8, 0], 24, dtype) for dtype in TOLERANCES),
        ([1] * 3, [16, 72, 136], 200, torch.float32),
        ([40, 1], [40, 8], 130, torch.float16),
        *(([3], [0], 16, dtype) for dtype in TOLERANCES),
        ([1000, 17, 0, 2, 1, 1], [12, 40, 8, 0, 8, 136], 40, torch.float16),
        pytest.param([1] * 3, [16, 72, 136], 200, torch.float16, marks=pytest.mark.slow),
        pytest.param([40, 1], [40, 8], 130, torch.float32, marks=pytest.mark.slow),
        pytest.param([1000, 17, 0, 2, 1, 1], [12, 40, 8, 0, 8, 136], 40, torch.float32, marks=pytest.mark.slow),
    ],
)
def test_rows_prompts_and_rows_without_lora(
    relative_error: RelativeError,
    segment_rows: list[int],
    ranks: list[int],
    width: int,
    dtype: torch.dtype,
) -> None:
    check(gated_case(segment_rows, ranks, width, dtype=dtype), relative_error)


@pytest.mark.parametrize("tile_programs", [1, 3])
def test_programs_take_tiles_in_turns(relative_error: RelativeError, tile_programs: int) -> None:
    """Also entries that share the columns of a tile, and those without rows behind them."""
    case = gated_case([1, 20, 1, 3, 1], [8, 40, 0, 16, 8], 40)
    config = replace(activation_config(case.table.shape, 40, torch.float32), tile_programs=tile_programs)
    assert tile_programs < case.table.shape.max_tiles
    out = case.new_out()
    expand_and_activate(out, case.gate_up, case.delta(), gelu=False, config=config)
    assert relative_error(out, case.expected(gelu=False)) < TOLERANCES[torch.float32]


@pytest.mark.parametrize(
    ("rows", "segments", "programs"), [(256, 256, 96), (128, 128, 96), (767, 385, 433), (543, 33, 14), (2079, 33, 38)]
)
def test_many_decodes_take_turns_and_prompts_have_a_program_for_each_large_tile(
    rows: int, segments: int, programs: int
) -> None:
    shape = LoraTableShape(rows, segments, 16)
    assert activation_config(shape, 11008, torch.bfloat16).tile_programs == programs


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
def test_arguments_that_do_not_fit_are_named(argument: str, shape: tuple[int, ...]) -> None:
    case = gated_case([4, 1], [16, 3], 24)
    delta = case.delta()
    values = {"out": case.new_out(), "gate_up": case.gate_up, "v": delta.v, "b_pages": delta.b_pages}
    values[argument] = torch.zeros(shape, device=DEVICE)
    with pytest.raises(ValueError, match=f"^{argument} must"):
        delta = LowRankDelta(values["v"], values["b_pages"], case.table)
        expand_and_activate(values["out"], values["gate_up"], delta, gelu=False)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_TOLERANCES)
@pytest.mark.parametrize(
    "segment_rows", [[1] * 128, [128] + [0] * 127, [512] + [1] * 31, [2048, 1], [300, 0, 1000, 700]]
)
def test_model_widths(relative_error: RelativeError, segment_rows: list[int], dtype: torch.dtype) -> None:
    ranks = [(16, 8, 64, 0, 128, 5, 33, 12)[number % 8] for number in range(len(segment_rows))]
    check(gated_case(segment_rows, ranks, 11008, dtype=dtype, h_in=4096), relative_error)
