from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from punica_kernels.activation import gelu_and_mul, silu_and_mul


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 1), (5, 33), (32, 256)])
def test_silu_and_mul_is_transformers(shape: tuple[int, int], dtype: torch.dtype) -> None:
    width = shape[1]
    config = LlamaConfig(hidden_size=width, intermediate_size=width, num_attention_heads=1, head_dim=2)
    mlp = LlamaMLP(config).requires_grad_(False).to(dtype)
    for linear in (mlp.gate_proj, mlp.down_proj):
        torch.nn.init.eye_(linear.weight)
    mlp.up_proj.weight.data.copy_(2 * torch.eye(width))
    x = (torch.randn(shape) * 4).to(dtype)
    out = torch.empty_like(x)
    silu_and_mul(out, torch.cat((x, 2 * x), dim=1))
    torch.testing.assert_close(out, mlp(x))


@pytest.mark.parametrize("delta_dtype", [torch.float32, torch.bfloat16])
def test_delta_is_added_first_in_float32(delta_dtype: torch.dtype) -> None:
    gate_up, delta = torch.randn(3, 20).to(torch.bfloat16), torch.randn(3, 20).to(delta_dtype)
    gate, up = (gate_up.float() + delta.float()).chunk(2, dim=1)
    out = torch.empty(3, 10, dtype=torch.bfloat16)
    silu_and_mul(out, gate_up, delta)
    torch.testing.assert_close(out.float(), functional.silu(gate) * up, rtol=8e-3, atol=1e-6)


@pytest.mark.parametrize(("argument", "value"), [("gate_up", torch.zeros(3, 6)), ("delta", torch.zeros(3, 4))])
def test_arguments_that_do_not_fit_are_named(argument: str, value: Tensor) -> None:
    arguments: dict[str, Any] = {"out": torch.zeros(3, 4), "gate_up": torch.zeros(3, 8), argument: value}
    with pytest.raises(ValueError, match=f"^{argument} must"):
        silu_and_mul(**arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gelu_and_mul_rounds_the_gate_before_it_multiplies(dtype: torch.dtype) -> None:
    gate, up, delta = (torch.randn(5, 33).mul(3).to(dtype) for _ in range(3))
    out = torch.empty_like(gate)
    gelu_and_mul(out, torch.cat((gate, up), dim=1))
    torch.testing.assert_close(out, functional.gelu(gate, approximate="tanh") * up)
    gelu_and_mul(out, torch.cat((gate, up), dim=1), torch.cat((delta, delta), dim=1))
    gate, up = gate.float() + delta.float(), up.float() + delta.float()
    torch.testing.assert_close(out.float(), functional.gelu(gate, approximate="tanh") * up, rtol=1e-2, atol=1e-5)
