"""Rotary position embedding (Su et al., RoFormer, 2021) in the rotate-half layout of Hugging Face's Llama.

Models may rotate the first elements of a head alone: as many as the tables say.
"""

import torch
from torch import Tensor

from punica_kernels.checks import require_dense_rows, require_shape
from punica_kernels.head_norms import HeadNorms


def rotary_tables(inv_freq: Tensor, max_position: int) -> tuple[Tensor, Tensor]:
    """cos and sin of position * inv_freq, each float32 [max_position, rotated / 2], on inv_freq's device.

    `inv_freq`: float [rotated / 2], such as theta^(-2i / rotated).
    """
    positions = torch.arange(max_position, dtype=torch.float32, device=inv_freq.device)
    angles = torch.outer(positions, inv_freq.float())
    return angles.cos(), angles.sin()


def rotary_append(
    q_out: Tensor,
    qkv: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    slot_mapping: Tensor,
    delta: Tensor | None = None,
    bias: Tensor | None = None,
    norms: HeadNorms | None = None,
    *,
    pdl: bool = False,
) -> None:
    """Rotate the queries and keys of qkv + delta + bias; queries go to `q_out`, keys and values into the paged cache.

    With `norms`, each head x of queries and keys becomes x / sqrt(mean(x^2) + eps) * weight before it is rotated.

    Element i of a head rotates with element i + rotated / 2 by the angle of its row's position, in float32, rounded
    once. Elements from `rotated` on, twice the tables' width, are kept.

    Args:
        q_out: [num_rows, heads, head_dim].
        qkv: [num_rows, (heads + 2 * kv_heads) * head_dim]: all queries of a row, then its keys, then its values; or
            float32 split-K partial sums [splits, num_rows, ...] of these.
        positions: int64 or int32 [num_rows].
        cos, sin: `rotary_tables`.
        keys, values: [num_pages, page_size, kv_heads, head_dim], strided views of one layer of the cache.
        slot_mapping: int64 or int32 [num_rows], page * page_size + offset of a row's key and value; -1 stores neither.
        delta: [num_rows, (heads + 2 * kv_heads) * head_dim], of q_out's dtype or float32; None adds nothing.
        bias: [(heads + 2 * kv_heads) * head_dim], any float dtype; None adds nothing.
        norms: None norms nothing.
        pdl: on CUDA, start while the kernel before this one on the stream ends.

    Raises ValueError, naming the argument, when the shapes do not fit.
    """
    _check_append(q_out, qkv, positions, cos, sin, keys, values, slot_mapping, delta, bias, norms)
    if qkv.is_cuda:
        from punica_kernels.gpu import rotary

        require_dense_rows(q_out=q_out, qkv=qkv, positions=positions, cos=cos, sin=sin, delta=delta)
        require_dense_rows(keys=keys, values=values, slot_mapping=slot_mapping, bias=bias)
        rotary.rotary_append(q_out, qkv, positions, cos, sin, keys, values, slot_mapping, delta, bias, norms, pdl=pdl)
    else:
        total = qkv.sum(0) if qkv.dim() == 3 else qkv
        added = total if delta is None else total.float().add(delta)
        added = added if bias is None else added.float().add(bias)
        _rotary_append(q_out, added, positions, cos, sin, keys, values, slot_mapping, norms)


def _rotary_append(
    q_out: Tensor,
    qkv: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    slot_mapping: Tensor,
    norms: HeadNorms | None,
) -> None:
    num_rows, heads, head_dim = q_out.shape
    _, page_size, kv_heads, _ = keys.shape
    q, k, v = qkv.view(num_rows, -1, head_dim).split((heads, kv_heads, kv_heads), dim=1)
    if norms is not None:
        q, k = _norm(q, norms.q, norms.eps), _norm(k, norms.k, norms.eps)
    row_cos = cos.index_select(0, positions)[:, None]
    row_sin = sin.index_select(0, positions)[:, None]
    q_out.copy_(_rotate(q, row_cos, row_sin))
    rows = (slot_mapping >= 0).nonzero().squeeze(1)
    slot_mapping = slot_mapping[rows].long()
    cells = (slot_mapping // page_size, slot_mapping % page_size)
    keys[cells] = _rotate(k, row_cos, row_sin)[rows].to(keys.dtype)
    values[cells] = v[rows].to(values.dtype)


def _norm(heads: Tensor, weight: Tensor, eps: float) -> Tensor:
    """float32, like heads."""
    x = heads.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.float()


def _rotate(heads: Tensor, row_cos: Tensor, row_sin: Tensor) -> Tensor:
    """float32, like heads [num_rows, heads, head_dim]."""
    pairs = row_cos.shape[-1]
    first, second, kept = heads[..., :pairs], heads[..., pairs : 2 * pairs], heads[..., 2 * pairs :].float()
    return torch.cat((first * row_cos - second * row_sin, second * row_cos + first * row_sin, kept), dim=-1)


def _check_append(
    q_out: Tensor,
    qkv: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    slot_mapping: Tensor,
    delta: Tensor | None,
    bias: Tensor | None,
    norms: HeadNorms | None,
) -> None:
    num_rows, heads, head_dim = q_out.shape
    num_pages, page_size, kv_heads, _ = keys.shape
    splits = qkv.shape[:1] if qkv.dim() == 3 else ()
    require_shape("qkv", qkv, *splits, num_rows, (heads + 2 * kv_heads) * head_dim)
    require_shape("positions", positions, num_rows)
    require_shape("cos", cos, cos.shape[0], min(cos.shape[-1], head_dim // 2))
    require_shape("sin", sin, *cos.shape)
    require_shape("keys", keys, num_pages, page_size, kv_heads, head_dim)
    require_shape("values", values, *keys.shape)
    require_shape("slot_mapping", slot_mapping, num_rows)
    if delta is not None:
        require_shape("delta", delta, *qkv.shape[-2:])
    if bias is not None:
        require_shape("bias", bias, qkv.shape[-1])
    if norms is not None:
        require_shape("norms.q", norms.q, head_dim)
        require_shape("norms.k", norms.k, head_dim)
