"""Inverse frequencies of rotary embeddings, with the scalings that Llama checkpoints use."""

import math

import torch
from torch import Tensor

from punica_serve.model_config import Llama3RopeScaling, ModelConfig


def inverse_frequencies(config: ModelConfig) -> Tensor:
    """float32 [head_dim / 2]: theta ** (-2i / head_dim), scaled as config says."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    if config.rope_scaling is not None:
        return _scale_as_llama3(frequencies, config.rope_scaling)
    return frequencies / config.rope_linear_factor


def _scale_as_llama3(frequencies: Tensor, scaling: Llama3RopeScaling) -> Tensor:
    """Keeps short wavelengths, divides long ones by ``factor``, and blends linearly between the two bounds."""
    wavelengths = 2 * math.pi / frequencies
    context = scaling.original_max_position_embeddings
    blend = (context / wavelengths - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return blend * frequencies + (1 - blend) * frequencies / scaling.factor
