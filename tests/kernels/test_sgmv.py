from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from lora_cases import RandomCase, lora_delta
from punica_kernels import sgmv
from punica_kernels.segments import SegmentIndex
from punica_kernels.sgmv import add_lora, sgmv_expand, sgmv_shrink
from punica_serve.workload import Population, counts

#: Relative Frobenius error. Sums are float32, so half precision only pays for rounding the result.
TOLERANCES = {torch.float32: 1e-6, torch.bfloat16: 3e-3, torch.float16: 4e-4}
PAGE_RANKS = 8
RelativeError = Callable[[Tensor, Tensor], float]


@dataclass
class Case(RandomCase):
    """With a scratch buffer poisoned with NaN."""

    v: Tensor

    @property
    def index(self) -> SegmentIndex:
        return SegmentIndex.build(self.indptr, self.pages)

    def run(self) -> Tensor:
        """y after add_lora."""
        y = self.y.clone()
        add_lora(y, self.x, self.a_pages, self.b_pages, self.out_offsets, self.index, self.v)
        return y

    def expected(self) -> Tensor:
        return self.y.double() + lora_delta(self)


def make_case(segment_rows: list[int], ranks: list[int], **options: Any) -> Case:
    """As ``RandomCase.of``."""
    case = RandomCase.of(segment_rows, ranks, **options)
    max_ranks = (max(map(len, case.pages)) + 1) * PAGE_RANKS
    v = torch.full((len(case.x) + 2, len(case.out_offsets) - 1, max_ranks), torch.nan)
    return Case(**vars(case), v=v)


def mixed_ranks(num_adapters: int) -> list[int]:
    return [(1, 8, 16, 0, 64, 5, 33, 12)[adapter % 8] for adapter in range(num_adapters)]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("population", Population)
@pytest.mark.parametrize("num_rows", [1, 7, 32, 65])
def test_add_lora_over_populations_of_mixed_ranks(
    relative_error: RelativeError, population: Population, num_rows: int, dtype: torch.dtype
) -> None:
    segment_rows = counts(population, num_rows)
    case = make_case(segment_rows, mixed_ranks(len(segment_rows)), dtype=dtype, slice_widths=(24, 8, 8))
    assert relative_error(case.run(), case.expected()) < TOLERANCES[dtype]


@pytest.mark.parametrize("rank", [*range(1, 10), 16, 31, 64])
def test_one_row_per_segment_is_the_bgmv_case(relative_error: RelativeError, rank: int) -> None:
    case = make_case([1] * 5, [rank] * 5)
    assert relative_error(case.run(), case.expected()) < TOLERANCES[torch.float32]


@pytest.mark.parametrize(("h_in", "slice_widths"), [(1, (1,)), (3, (5, 7)), (129, (1, 130, 3)), (64, (64, 64))])
def test_odd_widths(relative_error: RelativeError, h_in: int, slice_widths: tuple[int, ...]) -> None:
    case = make_case([3, 1, 17], [12, 8, 40], h_in=h_in, slice_widths=slice_widths)
    assert relative_error(case.run(), case.expected()) < TOLERANCES[torch.float32]


def test_a_prefill_beside_decodes_and_empty_segments(relative_error: RelativeError) -> None:
    case = make_case([200, 0, 1, 1, 0, 1], [16, 8, 64, 0, 0, 4], slice_widths=(24, 24))
    assert relative_error(case.run(), case.expected()) < TOLERANCES[torch.float32]


def test_weights_are_gathered_in_parts(relative_error: RelativeError, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sgmv, "_GATHER_ELEMENTS", 2 * PAGE_RANKS * 40)
    case = make_case([1] * 7 + [70], [16] * 8)
    assert relative_error(case.run(), case.expected()) < TOLERANCES[torch.float32]


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_rows_without_lora_keep_their_bits(dtype: torch.dtype) -> None:
    case = make_case([2, 5, 1, 30, 1], [8, 0, 64, 0, 0], dtype=dtype)
    case.x[2:7] = torch.nan
    y = case.run()
    without = [*range(2, 7), *range(8, 39)]
    assert torch.equal(y[without], case.y[without])
    assert not torch.equal(y[:2], case.y[:2])


def test_nothing_happens_without_lora() -> None:
    case = make_case([4, 3], [0, 0])
    assert torch.equal(case.run(), case.y)
    assert case.v.isnan().all()


def test_shrink_writes_only_the_rows_own_ranks() -> None:
    case = make_case([1, 2, 1], [8, 24, 0], slice_widths=(8, 8))
    sgmv_shrink(case.v, case.x, case.a_pages, case.index)
    expected = torch.einsum("nk,psik->nspi", case.x[1:3], case.a_pages[case.pages[1]]).flatten(2)
    torch.testing.assert_close(case.v[1:3, :, :24], expected)
    assert not case.v[0, :, :8].isnan().any()
    assert case.v[0, :, 8:].isnan().all()
    assert case.v[1:3, :, 24:].isnan().all()
    assert case.v[3:].isnan().all()


def test_shrink_then_expand_is_add_lora() -> None:
    case = make_case([5, 1], [16, 3])
    y = case.y.clone()
    sgmv_shrink(case.v, case.x, case.a_pages, case.index)
    sgmv_expand(y, case.v, case.b_pages, case.out_offsets, case.index)
    assert torch.equal(y, case.run())


def test_expand_alone_gives_what_lora_adds(relative_error: RelativeError) -> None:
    case = make_case([5, 2, 1], [16, 0, 3])
    delta = torch.full_like(case.y, torch.nan)
    sgmv_shrink(case.v, case.x, case.a_pages, case.index)
    sgmv_expand(delta, case.v, case.b_pages, case.out_offsets, case.index, accumulate=False)
    assert relative_error(delta, case.expected() - case.y.double()) < TOLERANCES[torch.float32]
    assert not delta[5:7].any()


def test_strided_inputs_and_outputs(relative_error: RelativeError) -> None:
    case = make_case([5, 1, 20], [16, 3, 64])
    wide_x, wide_y = torch.randn(26, 3, 40), torch.randn(26, 100)
    strided = replace(case, x=wide_x[:, 1], y=wide_y[:, 10:34], v=torch.empty(64, 1, 26).permute(2, 1, 0))
    before = wide_y.clone()
    add_lora(strided.y, strided.x, case.a_pages, case.b_pages, case.out_offsets, case.index, strided.v)
    expected = replace(strided, y=before[:, 10:34]).expected()
    assert relative_error(strided.y, expected) < TOLERANCES[torch.float32]
    assert torch.equal(wide_y[:, :10], before[:, :10])
    assert torch.equal(wide_y[:, 34:], before[:, 34:])


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x", torch.zeros(6, 41)),
        ("x", torch.zeros(5, 40)),
        ("y", torch.zeros(6, 23)),
        ("a_pages", torch.zeros(9, 8, 40)),
        ("b_pages", torch.zeros(9, 1, 8, 24)),
        ("out_offsets", (0, 23)),
        ("out_offsets", (24,)),
        ("v", torch.zeros(6, 1, 15)),
        ("v", torch.zeros(5, 1, 16)),
        ("v", torch.zeros(6, 2, 16)),
        ("v", torch.zeros(6, 1, 16, dtype=torch.bfloat16)),
    ],
)
def test_arguments_that_do_not_fit_are_named(argument: str, value: Any) -> None:
    case = replace(make_case([5, 1], [16, 3]), **{argument: value})
    with pytest.raises(ValueError, match=f"^{argument} must"):
        case.run()
