"""The operators that are compared compute one thing, whatever the layout, and a wrong one is not timed."""

from typing import get_args

import pytest
import torch

from punica_serve.bench.kernels.accuracy import relative_error
from punica_serve.bench.kernels.case import Case
from punica_serve.bench.kernels.operators import Rows, Sgmv, _gpu_calls, checked, reference
from punica_serve.bench.kernels.setting import KernelBench
from punica_serve.bench.kernels.torch_operators import TorchOperators
from punica_serve.bench.kernels.weights import Layout, PagedWeights

CASE = Case("mixed", (1, 3, 2), (16, 16, 16))


def _rows(weights: PagedWeights, case: Case = CASE) -> Rows:
    return Rows(case.num_rows, weights.h_in, weights.h_out, weights.dtype, weights.device)


@pytest.mark.parametrize("layout", get_args(Layout))
def test_sgmv_is_right_on_every_layout(bench: KernelBench, layout: Layout) -> None:
    weights = bench.weights(8, layout=layout)
    rows = _rows(weights)
    assert checked(Sgmv(weights, CASE, rows).pair, weights, CASE, rows, "sgmv") < 1e-6


def test_adapters_of_different_ranks_share_no_page(bench: KernelBench) -> None:
    case = Case("ranks", (1, 2, 1), (8, 24, 16))
    weights = bench.weights(6)
    pages = [page for own in weights.pages(case) for page in own]
    assert sorted(pages) == [0, 1, 2, 3, 4, 5] and pages != sorted(pages)
    rows = _rows(weights, case)
    assert checked(Sgmv(weights, case, rows).pair, weights, case, rows, "sgmv") < 1e-6
    with pytest.raises(ValueError, match="3 adapters take 6 pages, but there are 4"):
        bench.weights(4).pages(case)


@pytest.mark.parametrize("name", ["loop", "gather-bmm", "bmm"])
def test_torch_computes_the_same(bench: KernelBench, name: str) -> None:
    weights = bench.weights(6)
    rows = _rows(weights)
    assert checked(TorchOperators(weights, CASE, rows).operators[name](), weights, CASE, rows, name) < 1e-6


def test_shrink_then_expand_is_the_pair(bench: KernelBench) -> None:
    weights = bench.weights(6)
    rows = _rows(weights)
    expected = reference(weights, CASE, rows, 1)
    Sgmv(weights, CASE, rows).isolated_pair(1)
    assert relative_error(rows.y, expected) < 1e-6


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter is for machines without a GPU")
@pytest.mark.parametrize(("pdl", "max_pages"), [(False, 3), (True, 16)])
def test_the_gpu_kernels_are_called_as_they_want_to_be(bench: KernelBench, pdl: bool, max_pages: int) -> None:
    """On the CPU's tensors, in Triton's interpreter."""
    pytest.importorskip("triton")
    from triton_interpreter import fast_interpreter

    case = Case("ranks", (1, 2, 1), (8, 24, 16))
    weights = bench.weights(6)
    rows = _rows(weights, case)
    shrink, expand, pair = _gpu_calls(weights, case.indptr, weights.pages(case), max_pages, (0, weights.h_out), rows)
    call = pair if pdl else lambda layer: (shrink(layer), expand(layer))
    with fast_interpreter():
        assert checked(call, weights, case, rows, "sgmv") < 1e-6


def test_an_operator_that_is_wrong_is_an_error(bench: KernelBench) -> None:
    weights = bench.weights(6)
    rows = _rows(weights)
    with pytest.raises(ArithmeticError, match=r"nothing on mixed, 6 rows, rank 16: error"):
        checked(lambda _: None, weights, CASE, rows, "nothing")
    with pytest.raises(ArithmeticError, match="error inf"):
        checked(lambda _: rows.y.fill_(torch.nan), weights, CASE, rows, "nan")
