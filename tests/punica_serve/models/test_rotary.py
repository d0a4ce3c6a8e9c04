"""Frequencies against transformers' own."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.base_model.model_spec import Llama3RopeScaling
from punica_serve.models.rotary import inverse_frequencies

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def _ours(model: ModelConfig) -> torch.Tensor:
    (frequencies,) = inverse_frequencies(model.spec.layers[0].rotary)
    return frequencies


def _theirs(head_dim: int, **rope: Any) -> torch.Tensor:
    config = LlamaConfig(
        hidden_size=2 * head_dim, num_attention_heads=2, head_dim=head_dim, rope_parameters={"rope_theta": 5e4, **rope}
    )
    frequencies = LlamaRotaryEmbedding(config).inv_freq
    assert isinstance(frequencies, torch.Tensor)
    return frequencies


@pytest.mark.parametrize("head_dim", [8, 64])
def test_frequencies_are_transformers(tiny_model: ModelConfig, head_dim: int) -> None:
    plain = replace(tiny_model, head_dim=head_dim, rope_theta=5e4)
    torch.testing.assert_close(_ours(plain), _theirs(head_dim, rope_type="default"))
    linear = replace(plain, rope_linear_factor=4.0)
    torch.testing.assert_close(_ours(linear), _theirs(head_dim, rope_type="linear", factor=4.0))
    llama3 = replace(plain, rope_scaling=Llama3RopeScaling(8.0, 1.0, 4.0, 64))
    torch.testing.assert_close(_ours(llama3), _theirs(head_dim, **LLAMA3))
