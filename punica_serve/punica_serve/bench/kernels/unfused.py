"""The fused operators as written in plain torch: one launch for each step of the formula."""

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As in Hugging Face's Llama."""
    hidden = x.float()
    variance = hidden.pow(2).mean(-1, keepdim=True)
    return weight * (hidden * torch.rsqrt(variance + eps)).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Adds the residual first, in place."""
    return rms_norm(residual.add_(x), weight, eps)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    activated: Tensor = functional.silu(gate)
    return activated * up


def rotary_append(
    qkv: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, slots: Tensor
) -> Tensor:
    """Rotates q and k of [rows, (heads + 2 kv_heads) * head_dim], writes k and v to their slots, returns q."""
    page_size, kv_heads, head_dim = keys.shape[1:]
    heads = qkv.view(len(qkv), -1, head_dim)
    q, k, v = heads.split((heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads), dim=1)
    row_cos, row_sin = (table[positions].repeat(1, 2)[:, None].to(qkv.dtype) for table in (cos, sin))
    where = (slots // page_size, slots % page_size)
    keys[where] = k * row_cos + _rotate_half(k) * row_sin
    values[where] = v
    rotated: Tensor = q * row_cos + _rotate_half(q) * row_sin
    return rotated


def fill_sampled(token_ids: Tensor, sources: Tensor, draws: Tensor) -> Tensor:
    drawn = draws.index_select(0, sources.clamp_min(0))
    return torch.where(sources < 0, token_ids, drawn).clamp_min(0)


def _rotate_half(heads: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)
