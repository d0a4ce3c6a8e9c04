import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from punica_kernels.rotary import apply_rotary, rotary_tables

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
THETA = 10000.0


def transformers_rotary(q: Tensor, k: Tensor, positions: Tensor, config: LlamaConfig) -> tuple[Tensor, ...]:
    """transformers wants [batch, heads, rows, head_dim]; here rows come first."""
    cos, sin = LlamaRotaryEmbedding(config)(q, positions[None])
    rotated = apply_rotary_pos_emb(q.transpose(0, 1)[None], k.transpose(0, 1)[None], cos, sin)
    return tuple(heads[0].transpose(0, 1) for heads in rotated)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 4, 16), (6, 2, 64), (1, 1, 2)])
def test_rotation_is_transformers(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    # Strided views of one buffer, as a stacked qkv projection gives them.
    buffer = torch.randn(9, heads + kv_heads + 1, head_dim).to(dtype)
    q, k, rest = buffer.split((heads, kv_heads, 1), dim=1)
    rest_before = rest.clone()
    positions = torch.tensor([0, 1, 2, 99, 5, 5, 511, 40, 3])
    config = LlamaConfig(
        head_dim=head_dim,
        hidden_size=heads * head_dim,
        num_attention_heads=heads,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
    )
    expected_q, expected_k = transformers_rotary(q, k, positions, config)

    inv_freq = 1.0 / THETA ** (torch.arange(0, head_dim, 2) / head_dim)
    apply_rotary(q, k, positions, *rotary_tables(inv_freq, 512))

    torch.testing.assert_close(q, expected_q, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])
    torch.testing.assert_close(k, expected_k, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])
    assert torch.equal(rest, rest_before)


def test_tables_are_of_the_frequencies_given() -> None:
    inv_freq = torch.tensor([1.0, 0.25])
    cos, sin = rotary_tables(inv_freq, 5)
    angles = torch.arange(5.0)[:, None] * inv_freq
    assert cos.dtype == sin.dtype == torch.float32
    torch.testing.assert_close(cos, angles.cos())
    torch.testing.assert_close(sin, angles.sin())
