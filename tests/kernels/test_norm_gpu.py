"""The norms in Triton: on a GPU, or in Triton's interpreter on small shapes where there is none."""

import pytest
import torch
from torch import Tensor

from punica_kernels.block_end import BlockEnd
from punica_kernels.gpu.norm import add_rms_norm, rms_norm

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
#: Relative; half precision rounds twice, the quotient and the result.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3}
GPU_TOLERANCES = {**TOLERANCES, torch.bfloat16: 1.6e-2}
SHAPES = [(1, 1), (3, 7), (4, 64), (2, 1025)]
GPU_SHAPES = [(1, 2048), (33, 4096), (7, 5120), (512, 8192), (3, 16384)]
EPS = 1e-5


def normal(*shape: int, dtype: torch.dtype) -> Tensor:
    return (torch.randn(*shape, device=DEVICE) * 3).to(dtype)


def expected_norm(x: Tensor, weight: Tensor) -> Tensor:
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


def check_close(actual: Tensor, expected: Tensor) -> None:
    tolerance = GPU_TOLERANCES[actual.dtype]
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=1e-6)


def check_rms_norm(shape: tuple[int, int], dtype: torch.dtype) -> None:
    # Rows of a wider buffer: the rows' strides differ.
    x, weight = normal(shape[0], shape[1] + 3, dtype=dtype)[:, : shape[1]], normal(shape[1], dtype=dtype)
    for pdl in (False, True):
        out = torch.full(shape, torch.nan, dtype=dtype, device=DEVICE)
        rms_norm(out, x, weight, EPS, pdl=pdl)
        check_close(out, expected_norm(x, weight))


def check_add_rms_norm(shape: tuple[int, int], dtype: torch.dtype, delta_dtype: torch.dtype | None) -> None:
    x, residual, weight = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype), normal(shape[1], dtype=dtype)
    delta = normal(*shape, dtype=delta_dtype) if delta_dtype else None
    total = residual.double() + x.double() + (0 if delta is None else delta.double())
    for pdl in (False, True):
        out, added = x.clone(), residual.clone()
        add_rms_norm(BlockEnd(out, out, added, weight, EPS, delta), pdl=pdl)
        torch.testing.assert_close(added.double(), total, rtol=torch.finfo(dtype).eps, atol=1e-5)
        check_close(out, expected_norm(added, weight))


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm(shape: tuple[int, int], dtype: torch.dtype) -> None:
    check_rms_norm(shape, dtype)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("delta_dtype", [None, torch.float16, torch.float32])
def test_add_rms_norm_over_x(delta_dtype: torch.dtype | None, dtype: torch.dtype) -> None:
    check_add_rms_norm((3, 70), dtype, delta_dtype)


@pytest.mark.parametrize("splits", [1, 2, 4])
def test_add_rms_norm_of_partial_sums(splits: int) -> None:
    x, residual = torch.randn(splits, 4, 70, device=DEVICE), normal(4, 70, dtype=torch.float16)
    weight, out, added = normal(70, dtype=torch.float16), torch.empty_like(residual), residual.clone()
    add_rms_norm(BlockEnd(out, x, added, weight, EPS))
    torch.testing.assert_close(added.double(), residual.double() + x.double().sum(0), rtol=1e-3, atol=1e-5)
    check_close(out, expected_norm(added, weight))


def check_norm_behind_a_block(shape: tuple[int, int], dtype: torch.dtype, splits: int) -> None:
    x = torch.randn(splits, *shape, device=DEVICE) if splits > 1 else normal(*shape, dtype=dtype)
    residual, delta = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype)
    weight, behind = (torch.randn(shape[1], device=DEVICE) for _ in range(2))
    total = (x.double().sum(0) if splits > 1 else x.double()) + delta.double()
    expected = residual.double() + expected_norm(total, behind)
    for pdl in (False, True):
        out, added = torch.empty_like(residual), residual.clone()
        add_rms_norm(BlockEnd(out, x, added, weight, EPS, delta, behind), pdl=pdl)
        tolerance = GPU_TOLERANCES[dtype]
        torch.testing.assert_close(added.double(), expected, rtol=tolerance, atol=2 * tolerance)
        check_close(out, expected_norm(added, weight))


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("splits", [1, 4])
def test_the_norm_behind_a_block(splits: int, dtype: torch.dtype) -> None:
    check_norm_behind_a_block((4, 70), dtype, splits)


def test_large_half_precision_values_do_not_overflow() -> None:
    x = torch.full((1, 64), 60000.0, dtype=torch.float16, device=DEVICE)
    rms_norm(x, x, torch.ones(64, dtype=torch.float16, device=DEVICE), EPS)
    torch.testing.assert_close(x, torch.ones_like(x))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_TOLERANCES)
@pytest.mark.parametrize("shape", GPU_SHAPES)
def test_model_widths(shape: tuple[int, int], dtype: torch.dtype) -> None:
    check_rms_norm(shape, dtype)
    for delta_dtype in (None, dtype, torch.float32):
        check_add_rms_norm(shape, dtype, delta_dtype)
    check_norm_behind_a_block(shape, dtype, 1)
    check_norm_behind_a_block(shape, dtype, 2)
