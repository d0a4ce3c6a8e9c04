"""The SGMV kernels in Triton: on a GPU, or in Triton's interpreter on small shapes where there is none."""

from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from punica_kernels.gpu.sgmv import expand, shrink, workspace_numel
from punica_kernels.lora_table import LoraTable, LoraTableShape
from punica_kernels.sgmv import add_lora, sgmv_expand, sgmv_shrink

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
#: Relative Frobenius error: what rounding the result costs. The interpreter multiplies bfloat16 wrongly.
TOLERANCES = {torch.float32: 1e-6, torch.float16: 4e-4}
GPU_TOLERANCES = {**TOLERANCES, torch.bfloat16: 3e-3}
PAGE_RANKS = 8
#: Rows of the table past the last segment.
SPARE_ROWS = 3


@dataclass
class Case:
    """One call on poisoned buffers: y of rows to add to, or to be overwritten."""

    indptr: list[int]
    pages: list[list[int]]
    table: LoraTable
    x: Tensor
    y: Tensor
    a_pages: Tensor
    b_pages: Tensor
    out_offsets: tuple[int, ...]
    v: Tensor

    def added(self) -> Tensor:
        y = self.y.clone()
        add_lora(y, self.x, self.a_pages, self.b_pages, self.out_offsets, self.table, self.v)
        return y

    def delta(self, *, chained: bool = False) -> Tensor:
        delta = torch.full_like(self.y, torch.nan)
        shrink(self.v, self.x, self.a_pages, self.table, chained=chained)
        expand(delta, self.v, self.b_pages, self.out_offsets, self.table, accumulate=False, chained=chained)
        return delta

    def expected_delta(self) -> Tensor:
        """The maths in float64, a loop over segments, pages and slices."""
        delta = torch.zeros_like(self.y, dtype=torch.float64)
        for (start, end), pages in zip(pairwise(self.indptr), self.pages, strict=True):
            for page in pages:
                for s, (left, right) in enumerate(pairwise(self.out_offsets)):
                    v = self.x[start:end].double() @ self.a_pages[page, s].double().T
                    delta[start:end, left:right] += v @ self.b_pages[page, :, left:right].double()
        return delta


def make_case(
    segment_rows: list[int],
    ranks: list[int],
    *,
    dtype: torch.dtype = torch.float32,
    h_in: int = 40,
    slice_widths: tuple[int, ...] = (24,),
    seed: int = 0,
) -> Case:
    """Adapters of `ranks` (0 = no LoRA) with pages scattered over one layer of pools of two layers."""
    rng = torch.Generator().manual_seed(seed)
    device_rng = torch.Generator(DEVICE).manual_seed(seed)
    pages_needed = [-(-rank // PAGE_RANKS) for rank in ranks]
    num_pages, h_out = sum(pages_needed) + 3, sum(slice_widths)
    free = torch.randperm(num_pages, generator=rng).tolist()
    pages = [[free.pop() for _ in range(needed)] for needed in pages_needed]

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=device_rng, device=DEVICE).to(dtype)

    a_pages = normal(num_pages, 2, len(slice_widths), PAGE_RANKS, h_in)[:, 1]
    b_pages = normal(num_pages, 2, PAGE_RANKS, h_out)[:, 1] / max(1, max(ranks)) ** 0.5 / h_in**0.5
    for rank, owned in zip(ranks, pages, strict=True):
        if rank % PAGE_RANKS:
            a_pages[owned[-1], :, rank % PAGE_RANKS :] = 0
            b_pages[owned[-1], rank % PAGE_RANKS :] = 0
    if free:
        a_pages[free], b_pages[free] = torch.nan, torch.nan
    indptr = list(accumulate(segment_rows, initial=0))
    shape = LoraTableShape(indptr[-1] + SPARE_ROWS, len(pages) + 1, max(2, *pages_needed))
    words = np.empty(shape.num_words, np.int32)
    shape.fill(words, indptr, pages)
    table = LoraTable(torch.from_numpy(words).to(DEVICE), shape)
    v = torch.full((workspace_numel(shape, len(slice_widths)),), torch.nan, device=DEVICE)
    out_offsets = tuple(accumulate(slice_widths, initial=0))
    x, y = normal(shape.max_rows, h_in), normal(shape.max_rows, h_out)
    return Case(indptr, pages, table, x, y, a_pages, b_pages, out_offsets, v)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize(("dtype", "slice_widths"), [(torch.float32, (24,)), (torch.float16, (24, 8, 8))])
def test_rows_prefills_and_rows_without_lora_in_one_call(dtype: torch.dtype, slice_widths: tuple[int, ...]) -> None:
    case = make_case([1, 17, 0, 3, 2, 1], [12, 40, 8, 1, 0, 8], dtype=dtype, slice_widths=slice_widths)
    expected = case.expected_delta()
    assert relative_error(case.delta(), expected) < TOLERANCES[dtype]
    assert relative_error(case.added(), case.y.double() + expected) < TOLERANCES[dtype]


@pytest.mark.parametrize("rank", [1, 8, 9, 16, 33, 128])
def test_ranks(rank: int) -> None:
    case = make_case([1, 2], [rank, rank])
    assert relative_error(case.delta(), case.expected_delta()) < TOLERANCES[torch.float32]


@pytest.mark.parametrize(("h_in", "slice_widths"), [(1, (1,)), (3, (5, 7)), (300, (1, 130, 3)), (64, (64, 64))])
def test_odd_widths(h_in: int, slice_widths: tuple[int, ...]) -> None:
    case = make_case([3, 1, 17], [12, 8, 40], h_in=h_in, slice_widths=slice_widths)
    assert relative_error(case.delta(), case.expected_delta()) < TOLERANCES[torch.float32]


def test_more_items_than_programs() -> None:
    case = make_case([1] * 5, [128] * 5)
    assert relative_error(case.delta(), case.expected_delta()) < TOLERANCES[torch.float32]


def test_rows_without_lora_keep_their_bits_or_become_zero() -> None:
    case = make_case([1, 2, 20], [8, 0, 16])
    case.x[1:3] = torch.nan
    case.x[23:] = torch.nan
    without = [1, 2, 23, 24, 25]
    assert torch.equal(case.added()[without], case.y[without])
    assert not case.delta()[without].any()


def test_no_row_with_lora() -> None:
    case = make_case([4, 3], [0, 0])
    assert torch.equal(case.added(), case.y)
    assert not case.delta().any()


def test_strided_rows() -> None:
    case = make_case([2, 1], [16, 8])
    expected = case.expected_delta()
    wide = torch.full((6, 100), 7.0, device=DEVICE)
    case.x = torch.cat([case.x, case.x], dim=1)[:, :40]
    shrink(case.v, case.x, case.a_pages, case.table)
    expand(wide[:, 10:34], case.v, case.b_pages, case.out_offsets, case.table, accumulate=False)
    assert relative_error(wide[:, 10:34], expected) < TOLERANCES[torch.float32]
    assert (wide[:, :10] == 7).all()
    assert (wide[:, 34:] == 7).all()


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x", torch.zeros(8, 40)),
        ("x", torch.zeros(40, 9).T),
        ("y", torch.zeros(9, 23)),
        ("a_pages", torch.zeros(9, 1, 4, 40)),
        ("a_pages", torch.zeros(9, 1, 40, 8).transpose(2, 3)),
        ("b_pages", torch.zeros(9, 4, 24)),
        ("b_pages", torch.zeros(9, 24, 8).transpose(1, 2)),
        ("out_offsets", (0, 23)),
        ("out_offsets", (0, 6, 12, 18, 24)),
        ("v", torch.zeros(9)),
        ("v", torch.zeros(1 << 20, dtype=torch.float16)),
    ],
)
def test_arguments_that_do_not_fit_are_named(argument: str, value: object) -> None:
    case = make_case([5, 1], [16, 3])
    setattr(case, argument, value)
    with pytest.raises(ValueError, match=f"^{argument} must"):
        sgmv_shrink(case.v, case.x, case.a_pages, case.table)
        sgmv_expand(case.y, case.v, case.b_pages, case.out_offsets, case.table)


def mixed_ranks(num_adapters: int) -> list[int]:
    return [(16, 8, 64, 0, 128, 5, 33, 12)[adapter % 8] for adapter in range(num_adapters)]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_TOLERANCES)
@pytest.mark.parametrize("segment_rows", [[1], [1] * 32, [8] * 8, [1] * 48 + [16], [512] + [1] * 31])
def test_model_widths(segment_rows: list[int], dtype: torch.dtype) -> None:
    ranks = mixed_ranks(len(segment_rows))
    case = make_case(segment_rows, ranks, dtype=dtype, h_in=4096, slice_widths=(4096, 1024, 1024))
    expected = case.expected_delta()
    assert relative_error(case.delta(), expected) < GPU_TOLERANCES[dtype]
    assert relative_error(case.added(), case.y.double() + expected) < GPU_TOLERANCES[dtype]
    assert torch.equal(case.delta(), case.delta())


@pytest.mark.gpu
@pytest.mark.parametrize(("h_in", "slice_widths"), [(11008, (4096,)), (4096, (11008, 11008)), (13824, (5120,))])
def test_other_widths_chained(h_in: int, slice_widths: tuple[int, ...]) -> None:
    case = make_case([1] * 20 + [3, 9], mixed_ranks(22), dtype=torch.bfloat16, h_in=h_in, slice_widths=slice_widths)
    expected = case.expected_delta()
    for _ in range(5):
        assert relative_error(case.delta(chained=True), expected) < GPU_TOLERANCES[torch.bfloat16]
        case.v.fill_(torch.nan)


@pytest.mark.gpu
def test_a_cuda_graph_serves_other_segments_than_it_was_captured_with() -> None:
    case = make_case([1] * 32, [16] * 32, dtype=torch.bfloat16, h_in=4096, slice_widths=(4096,))
    case.delta()
    delta = torch.full_like(case.y, torch.nan)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        shrink(case.v, case.x, case.a_pages, case.table)
        expand(delta, case.v, case.b_pages, case.out_offsets, case.table, accumulate=False)
    words = np.empty(case.table.shape.num_words, np.int32)
    own = case.pages
    steps = (([0, 20, 21, 30], [own[0], [], own[1][:1]]), ([0, 32], [own[5]]), ([0, 1, 2], [own[3][1:], own[9]]))
    for indptr, pages in steps:
        case.indptr, case.pages = indptr, pages
        case.table.shape.fill(words, indptr, pages)
        case.table.words.copy_(torch.from_numpy(words))
        delta.fill_(torch.nan)
        case.v.fill_(torch.nan)
        graph.replay()
        assert relative_error(delta, case.expected_delta()) < GPU_TOLERANCES[torch.bfloat16]
