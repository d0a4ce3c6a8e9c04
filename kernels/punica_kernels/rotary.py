"""Rotary position embedding (Su et al., RoFormer, 2021) in the rotate-half layout of Hugging Face's Llama."""

import torch
from torch import Tensor


def rotary_tables(inv_freq: Tensor, max_position: int) -> tuple[Tensor, Tensor]:
    """cos and sin of position * inv_freq, each float32 [max_position, head_dim / 2], on inv_freq's device.

    `inv_freq`: float [head_dim / 2], such as theta^(-2i / head_dim).
    """
    positions = torch.arange(max_position, dtype=torch.float32, device=inv_freq.device)
    angles = torch.outer(positions, inv_freq.float())
    return angles.cos(), angles.sin()


def apply_rotary(q: Tensor, k: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate q [num_rows, heads, head_dim] and k [num_rows, kv_heads, head_dim] in place.

    Element i of a head turns with element i + head_dim / 2 by the angle of its row's position. `positions` is int64
    [num_rows]; cos and sin are `rotary_tables`. Computed in float32, rounded once; q and k may be strided views.
    """
    row_cos = cos.index_select(0, positions)[:, None]
    row_sin = sin.index_select(0, positions)[:, None]
    for heads in (q, k):
        first, second = heads.chunk(2, dim=-1)
        rotated_first = first * row_cos - second * row_sin
        second.copy_(second * row_cos + first * row_sin)
        first.copy_(rotated_first)
