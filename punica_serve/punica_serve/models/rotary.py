"""Rotary embeddings with the scalings that Llama checkpoints use, fused with the append to the KvCache."""

import math

import torch
from torch import Tensor

from punica_kernels.rotary import rotary_append, rotary_tables
from punica_serve.base_model.model_spec import Llama3RopeScaling, RotarySpec
from punica_serve.models.linear import Projected
from punica_serve.models.model import ForwardBatch


class Rotary:
    """Rotates queries and keys and stores keys and values in the cache. One object serves all layers."""

    def __init__(self, spec: RotarySpec, num_heads: int, device: torch.device) -> None:
        self._num_heads = num_heads
        self._head_dim = spec.head_dim
        self._cos, self._sin = rotary_tables(inverse_frequencies(spec).to(device), spec.max_position)

    def __call__(self, layer: int, qkv: Projected, batch: ForwardBatch) -> Tensor:
        """The rotated queries, [rows, heads, head_dim]. Keys and values go to the layer's cache."""
        y, attention = qkv.y, batch.attention
        q = y.new_empty(y.shape[0], self._num_heads, self._head_dim)
        keys, values = attention.cache(layer)
        where = (batch.positions, self._cos, self._sin, keys, values, attention.slot_mapping)
        rotary_append(q, y, *where, qkv.delta, pdl=qkv.pdl)
        return q


def inverse_frequencies(spec: RotarySpec) -> Tensor:
    """float32 [head_dim / 2]: theta ** (-2i / head_dim), with the scaling of the spec."""
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.float32) / spec.head_dim
    frequencies = 1.0 / (spec.theta**exponents)
    if spec.llama3 is not None:
        return _scale_as_llama3(frequencies, spec.llama3)
    return frequencies / spec.linear_factor


def _scale_as_llama3(frequencies: Tensor, scaling: Llama3RopeScaling) -> Tensor:
    """Keeps short wavelengths, divides long ones by ``factor``, and blends linearly between the two bounds."""
    wavelengths = 2 * math.pi / frequencies
    context = scaling.original_max_position_embeddings
    blend = (context / wavelengths - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return blend * frequencies + (1 - blend) * frequencies / scaling.factor
