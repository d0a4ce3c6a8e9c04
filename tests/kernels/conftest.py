from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import pytest
import torch
from torch import Tensor

from triton_interpreter import fast_interpreter

PAGE_RANKS = 8
CPU = torch.device("cpu")


@pytest.fixture(scope="session", autouse=True)
def _fast_interpreter() -> Iterator[None]:
    with fast_interpreter():
        yield


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Random inputs are the same in every run, whichever tests run."""
    torch.manual_seed(0)


class ScatteredAdapters(NamedTuple):
    """Pages of each adapter, and one layer of the pools that they are in; pages that nobody owns are NaN."""

    pages: list[list[int]]
    #: [pages, slices, 8, h_in] and [pages, 8, h_out], strided.
    a_pages: Tensor
    b_pages: Tensor


def _scatter(
    ranks: Sequence[int], *, dtype: torch.dtype, h_in: int, slice_widths: Sequence[int], device: torch.device = CPU
) -> ScatteredAdapters:
    pages_needed = [-(-rank // PAGE_RANKS) for rank in ranks]
    num_pages = sum(pages_needed) + 3
    free = torch.randperm(num_pages).tolist()
    pages = [[free.pop() for _ in range(needed)] for needed in pages_needed]
    a_pages = torch.randn(num_pages, 2, len(slice_widths), PAGE_RANKS, h_in, device=device).to(dtype)[:, 1]
    b_pages = torch.randn(num_pages, 2, PAGE_RANKS, sum(slice_widths), device=device).to(dtype)[:, 1]
    # LoRA's part is then as large as y.
    b_pages /= max(1, *ranks) ** 0.5 * h_in**0.5
    for rank, owned in zip(ranks, pages, strict=True):
        if rank % PAGE_RANKS:
            a_pages[owned[-1], :, rank % PAGE_RANKS :] = 0
            b_pages[owned[-1], rank % PAGE_RANKS :] = 0
    a_pages[free], b_pages[free] = torch.nan, torch.nan
    return ScatteredAdapters(pages, a_pages, b_pages)


@pytest.fixture
def scatter_adapters() -> Callable[..., ScatteredAdapters]:
    """Adapters of ``ranks`` (0 = no LoRA) with pages scattered over one layer of pools of two layers."""
    return _scatter


class LoraCase(Protocol):
    """One call: x of the rows of segments, each with an adapter of its own."""

    indptr: list[int]
    pages: list[list[int]]
    a_pages: Tensor
    b_pages: Tensor
    x: Tensor
    out_offsets: tuple[int, ...]


def _lora_delta(case: LoraCase) -> Tensor:
    delta = case.x.new_zeros(len(case.x), case.out_offsets[-1], dtype=torch.float64)
    for (start, end), pages in zip(pairwise(case.indptr), case.pages, strict=True):
        for page in pages:
            for s, (left, right) in enumerate(pairwise(case.out_offsets)):
                v = case.x[start:end].double() @ case.a_pages[page, s].double().T
                delta[start:end, left:right] += v @ case.b_pages[page, :, left:right].double()
    return delta


@pytest.fixture
def lora_delta() -> Callable[[LoraCase], Tensor]:
    """LoRA's part: the maths in float64, a loop over segments, pages and slices."""
    return _lora_delta


def _relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected).norm() / expected.norm())


@pytest.fixture
def relative_error() -> Callable[[Tensor, Tensor], float]:
    """|actual - expected| / |expected|, in Frobenius' norm."""
    return _relative_error
