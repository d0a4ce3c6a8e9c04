"""The dense projection of few rows in Triton: on a GPU, or in Triton's interpreter where there is none."""

import pytest
import torch
from torch import Tensor

from punica_kernels.gpu.linear import MAX_ROWS, LinearConfig, linear, wanted_splits, wanted_stages
from punica_kernels.linear import linear as public_linear

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCES = {torch.float16: 1e-3, torch.bfloat16: 8e-3}


def _inputs(num_rows: int, num_out: int, num_in: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    # Rows of a wider buffer.
    x = torch.randn(num_rows, num_in + 8, device=DEVICE).to(dtype)[:, :num_in]
    weight = (torch.randn(num_out, num_in, device=DEVICE) / num_in**0.5).to(dtype)
    return x, weight, x.double() @ weight.double().T


def _check(y: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    total = y.double().sum(0) if y.dim() == 3 else y.double()
    assert float((total - expected).norm() / expected.norm()) < TOLERANCES[dtype]


@pytest.mark.parametrize("split_k", [1, 2, 4])
@pytest.mark.parametrize("num_rows", [1, 5, 16])
def test_every_split_and_row(num_rows: int, split_k: int) -> None:
    x, weight, expected = _inputs(num_rows, 128, 512, torch.float16)
    config = LinearConfig(block_rows=16, split_k=split_k, stages=2)
    y = linear(x, weight, config, pdl=False)
    assert y.shape == ((split_k, num_rows, 128) if split_k > 1 else (num_rows, 128))
    _check(y, expected, torch.float16)


@pytest.mark.parametrize(
    ("num_blocks", "num_sms", "split_k", "stages"),
    [
        (20, 132, 4, 5),
        (33, 132, 4, 5),
        (34, 132, 2, 5),
        (64, 132, 2, 5),
        (66, 132, 2, 5),
        (67, 132, 2, 4),
        (80, 132, 2, 4),
        (96, 132, 2, 4),
        (98, 132, 2, 4),
        (99, 132, 1, 5),
        (112, 132, 1, 5),
        (128, 132, 1, 5),
        (192, 132, 1, 5),
        (2004, 132, 1, 5),
        (64, 78, 1, 5),
        (20, 78, 2, 5),
        (48, 78, 2, 4),
    ],
)
def test_blocks_are_split_for_the_multiprocessors(num_blocks: int, num_sms: int, split_k: int, stages: int) -> None:
    assert wanted_splits(num_blocks, num_sms) == split_k
    assert wanted_stages(num_blocks, split_k, num_sms) == stages


def test_a_cpu_takes_torchs() -> None:
    x, weight = torch.randn(3, 5), torch.randn(7, 5)
    torch.testing.assert_close(public_linear(x, weight, split_k=True), x @ weight.T)


@pytest.mark.parametrize(
    ("x", "weight", "named"),
    [
        ((3, 6), (7, 5), "x"),
        ((3, 4), (7, 5), "x"),
        ((5,), (7, 5), "x"),
        ((2, 3, 5), (7, 5), "x"),
        ((3, 5), (2, 7, 5), "weight"),
    ],
)
def test_arguments_that_do_not_fit_are_named(x: tuple[int, ...], weight: tuple[int, ...], named: str) -> None:
    with pytest.raises(ValueError, match=rf"^{named} must be"):
        public_linear(torch.zeros(x, device=DEVICE), torch.zeros(weight, device=DEVICE))


@pytest.mark.gpu
def test_gaps_in_memory_are_named() -> None:
    x, weight, _ = _inputs(3, 128, 512, torch.float16)
    with pytest.raises(ValueError, match=r"^x must have a stride of 1"):
        public_linear(x.T.contiguous().T, weight)
    with pytest.raises(ValueError, match=r"^weight must be contiguous"):
        public_linear(x, weight.T.contiguous().T)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("num_out", "num_in"), [(4096, 4096), (12288, 4096), (22016, 4096), (4096, 11008), (72, 40)])
@pytest.mark.parametrize("num_rows", [1, 2, 31, 32, 48, 64, 65, 300])
def test_model_shapes(num_rows: int, num_out: int, num_in: int, dtype: torch.dtype) -> None:
    x, weight, expected = _inputs(num_rows, num_out, num_in, dtype)
    for split_k in (False, True):
        for pdl in (False, True):
            y = public_linear(x, weight, split_k=split_k, pdl=pdl)
            assert split_k or y.shape == (num_rows, num_out)
            _check(y, expected, dtype)
    assert y.dim() == (3 if num_out == 4096 and num_rows <= MAX_ROWS else 2)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("num_out", "num_in"), [(1280, 8192), (8192, 1024), (7168, 8192), (8192, 3584), (4000, 8192)])
@pytest.mark.parametrize("num_rows", [1, 32, 64, 300])
def test_shapes_of_one_rank_of_eight(num_rows: int, num_out: int, num_in: int, dtype: torch.dtype) -> None:
    x, weight, expected = _inputs(num_rows, num_out, num_in, dtype)
    for split_k in (False, True):
        _check(public_linear(x, weight, split_k=split_k, pdl=True), expected, dtype)
