"""Rotary embeddings with the scalings that checkpoints use, fused with the append to the KvCache."""

import math

import torch
from torch import Tensor

from punica_kernels.head_norms import HeadNorms
from punica_kernels.rotary import rotary_append, rotary_tables
from punica_serve.base_model.model_spec import Llama3RopeScaling, LongRopeScaling, RotarySpec, YarnScaling
from punica_serve.models.linear import Projected
from punica_serve.models.model import ForwardBatch


class Rotary:
    """Rotates queries and keys and stores keys and values in the cache. One object serves all layers."""

    def __init__(self, spec: RotarySpec, num_heads: int, dtype: torch.dtype, device: torch.device) -> None:
        """``dtype``: of the rotated queries."""
        self._num_heads = num_heads
        self._dtype = dtype
        self._head_dim = spec.head_dim
        tables = [rotary_tables(each.to(device), spec.max_position) for each in inverse_frequencies(spec)]
        # One behind the other: rows say by their position which they read.
        self._cos, self._sin = (torch.cat(halves) * magnitude(spec) for halves in zip(*tables, strict=True))

    def __call__(
        self, layer: int, qkv: Projected, batch: ForwardBatch, bias: Tensor | None, norms: HeadNorms | None
    ) -> Tensor:
        """The rotated queries, [rows, heads, head_dim]. Keys and values go to the layer's cache.

        ``bias`` is added and ``norms`` are applied before, where the model has them.
        """
        y, attention = qkv.y, batch.attention
        q = y.new_empty(y.shape[-2], self._num_heads, self._head_dim, dtype=self._dtype)
        keys, values = attention.cache(layer)
        where = (batch.positions, self._cos, self._sin, keys, values, attention.slot_mapping)
        rotary_append(q, y, *where, qkv.delta, bias, norms, pdl=qkv.pdl)
        return q


def inverse_frequencies(spec: RotarySpec) -> tuple[Tensor, ...]:
    """float32 [rotary_dim / 2]: theta ** (-2i / rotary_dim), with the scaling of the spec.

    LongRoPE has two, the second one for long requests.
    """
    exponents = torch.arange(0, spec.rotary_dim, 2, dtype=torch.float32) / spec.rotary_dim
    frequencies = 1.0 / (spec.theta**exponents)
    match spec.scaling:
        case Llama3RopeScaling():
            return (_scale_as_llama3(frequencies, spec.scaling),)
        case YarnScaling():
            return (frequencies * _yarn_factors(spec, spec.scaling),)
        case LongRopeScaling(short, long):
            return tuple(1.0 / (torch.tensor(each) * spec.theta**exponents) for each in (short, long))
    return (frequencies / spec.linear_factor,)


def magnitude(spec: RotarySpec) -> float:
    """The factor of cos and sin."""
    return spec.scaling.magnitude if isinstance(spec.scaling, YarnScaling | LongRopeScaling) else 1.0


def _scale_as_llama3(frequencies: Tensor, scaling: Llama3RopeScaling) -> Tensor:
    """Keeps short wavelengths, divides long ones by ``factor``, and blends linearly between the two bounds."""
    wavelengths = 2 * math.pi / frequencies
    context = scaling.original_max_position_embeddings
    blend = (context / wavelengths - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return blend * frequencies + (1 - blend) * frequencies / scaling.factor


def _yarn_factors(spec: RotarySpec, scaling: YarnScaling) -> Tensor:
    """float32 [head_dim / 2]: 1 for the frequencies that are kept, 1 / factor for those that are divided."""

    def index_of(rotations: float) -> float:
        """The index, not rounded, of the frequency that turns so often within the original context."""
        turns = scaling.original_max_position_embeddings / (2 * math.pi * rotations)
        return spec.head_dim * math.log(turns) / (2 * math.log(spec.theta))

    low, high = index_of(scaling.beta_fast or 32.0), index_of(scaling.beta_slow or 1.0)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.head_dim - 1)
    # A range of one point would divide by zero.
    ramp = (torch.arange(spec.head_dim // 2, dtype=torch.float32) - low) / (high - low or 0.001)
    divided = ramp.clamp(0, 1)
    return divided / scaling.factor + (1 - divided)
