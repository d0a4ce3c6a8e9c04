import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

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
    add_rms_norm(x, x, residual, norm.weight, EPS)
    assert torch.equal(residual, total)
    torch.testing.assert_close(x, norm(total), rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])
