from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from punica_kernels.block_end import BlockEnd
from punica_kernels.norm import add_rms_norm, rms_norm

#: Both round the quotient to x's dtype before the weight, so a half-precision result differs by one rounding at most.
TOLERANCES = {torch.float32: 1e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
EPS = 1e-5


def make_norm(hidden_size: int, dtype: torch.dtype) -> LlamaRMSNorm:
    norm = LlamaRMSNorm(hidden_size, EPS)
    norm.weight.data.uniform_(0.5, 1.5)
    return norm.to(dtype).requires_grad_(False)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (33, 64), (2, 1025)])
def test_rms_norm_is_transformers(shape: tuple[int, int], dtype: torch.dtype) -> None:
    norm, x = make_norm(shape[1], dtype), (torch.randn(shape) * 3).to(dtype)
    out = torch.empty_like(x)
    rms_norm(out, x, norm.weight, EPS)
    torch.testing.assert_close(out, norm(x), rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


def test_eps_is_inside_the_root() -> None:
    x = torch.full((1, 4), 1e-3)
    out = torch.empty_like(x)
    rms_norm(out, x, torch.ones(4), 3e-6)
    torch.testing.assert_close(out, torch.full((1, 4), 0.5))


def test_large_half_precision_values_do_not_overflow() -> None:
    x = torch.full((1, 64), 60000.0, dtype=torch.float16)
    rms_norm(x, x, torch.ones(64, dtype=torch.float16), EPS)
    torch.testing.assert_close(x, torch.ones_like(x))


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_add_rms_norm_adds_in_place_and_may_write_over_x(dtype: torch.dtype) -> None:
    norm, x, residual = make_norm(24, dtype), torch.randn(5, 24).to(dtype), torch.randn(5, 24).to(dtype)
    total = x + residual
    add_rms_norm(BlockEnd(x, x, residual, norm.weight, EPS))
    assert torch.equal(residual, total)
    torch.testing.assert_close(x, norm(total), rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("delta_dtype", [torch.float32, torch.float16])
def test_delta_joins_the_sum_before_its_one_rounding(delta_dtype: torch.dtype, dtype: torch.dtype) -> None:
    x, residual, weight = torch.randn(5, 24).to(dtype), torch.randn(5, 24).to(dtype), torch.ones(24, dtype=dtype)
    delta = torch.randn(5, 24).to(delta_dtype)
    total = (residual.double() + x.double() + delta.double()).to(dtype)
    out = torch.empty_like(x)
    add_rms_norm(BlockEnd(out, x, residual, weight, EPS, delta))
    torch.testing.assert_close(residual, total)
    expected = torch.empty_like(x)
    rms_norm(expected, residual, weight, EPS)
    assert torch.equal(out, expected)


def make_gemma_norm(dtype: torch.dtype) -> tuple[Gemma3RMSNorm, Tensor]:
    """Transformers' norm, and its weight as our kernels take it."""
    norm = Gemma3RMSNorm(24, EPS)
    norm.weight.data.uniform_(-0.5, 0.5)
    norm = norm.to(dtype).requires_grad_(False)
    return norm, norm.weight.float() + 1


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("with_delta", [False, True])
def test_the_norm_behind_a_block_is_transformers(with_delta: bool, dtype: torch.dtype) -> None:
    (behind, behind_weight), (norm, weight) = make_gemma_norm(dtype), make_gemma_norm(dtype)
    x, residual = torch.randn(5, 24).to(dtype), torch.randn(5, 24).to(dtype)
    delta = torch.randn(5, 24) if with_delta else None
    expected = residual + behind(x if delta is None else x.float() + delta).to(dtype)
    out = torch.empty_like(x)
    add_rms_norm(BlockEnd(out, x, residual, weight, EPS, delta, behind_weight))
    torch.testing.assert_close(residual, expected, rtol=2 * TOLERANCES[dtype], atol=2 * TOLERANCES[dtype])
    torch.testing.assert_close(out, norm(residual), rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("out", torch.zeros(2, 4)),
        ("residual", torch.zeros(3, 5)),
        ("weight", torch.zeros(5)),
        ("delta", torch.zeros(4)),
        ("added_weight", torch.zeros(5)),
    ],
)
def test_arguments_that_do_not_fit_are_named(argument: str, value: Tensor) -> None:
    arguments: dict[str, Any] = {name: torch.zeros(3, 4) for name in ("out", "x", "residual")} | {
        "weight": torch.ones(4)
    }
    with pytest.raises(ValueError, match=f"^{argument} must"):
        add_rms_norm(BlockEnd(**{**arguments, argument: value}, eps=EPS))
