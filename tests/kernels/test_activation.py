import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from punica_kernels.activation import silu_and_mul


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
