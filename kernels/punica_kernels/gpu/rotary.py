"""Rotary embedding and append to the paged cache in Triton. `punica_kernels.rotary` checks the arguments."""

import triton
import triton.language as tl
from torch import Tensor

from punica_kernels.gpu.partial_sums import load_splits
from punica_kernels.gpu.pdl import await_predecessors, pdl_options, start_dependents
from punica_kernels.head_norms import HeadNorms

#: Pairs of elements that one program rotates.
_PROGRAM_PAIRS = 1024


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
    """Adds parts, delta and bias, norms and rotates queries and keys, stores keys and values, in one launch."""
    num_rows, heads, head_dim = q_out.shape
    if num_rows == 0:
        return
    _, page_size, kv_heads, _ = keys.shape
    is_split = qkv.dim() == 3
    block_pairs = triton.next_power_of_2(head_dim // 2)
    block_heads = max(1, min(_PROGRAM_PAIRS // block_pairs, triton.next_power_of_2(heads + 2 * kv_heads)))
    _rotary_append[(num_rows, triton.cdiv(heads + 2 * kv_heads, block_heads))](
        q_out,
        qkv,
        delta,
        bias,
        norms.q if norms is not None else None,
        norms.k if norms is not None else None,
        positions,
        cos,
        sin,
        keys,
        values,
        slot_mapping,
        *q_out.stride()[:2],
        qkv.stride(-2),
        # Code for a finished tensor takes no such argument.
        qkv.stride(0) if is_split else None,
        delta.stride(0) if delta is not None else 0,
        cos.stride(0),
        sin.stride(0),
        *keys.stride()[:3],
        *values.stride()[:3],
        norms.eps if norms is not None else 0.0,
        HEADS=heads,
        KV_HEADS=kv_heads,
        PAIRS=head_dim // 2,
        ROTATED_PAIRS=cos.shape[1],
        PAGE_SIZE=page_size,
        BLOCK_HEADS=block_heads,
        BLOCK_PAIRS=block_pairs,
        SPLIT_K=len(qkv) if is_split else 1,
        num_warps=4,
        **pdl_options(qkv.device, wait=pdl),
    )


@triton.jit
def _rotary_append(
    q_out,
    qkv,
    delta,
    bias,
    q_norm,
    k_norm,
    positions,
    cos,
    sin,
    keys,
    values,
    slot_mapping,
    q_row_stride,
    q_head_stride,
    qkv_stride,
    split_stride,
    delta_stride,
    cos_stride,
    sin_stride,
    key_page_stride,
    key_slot_stride,
    key_head_stride,
    value_page_stride,
    value_slot_stride,
    value_head_stride,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
    ROTATED_PAIRS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
    SPLIT_K: tl.constexpr,
    PDL_TRIGGER: tl.constexpr,
    PDL_WAIT: tl.constexpr,
):
    """One program per row and block of heads; a row's heads are its queries, then its keys, then its values.

    A head's elements are taken in pairs: those that rotate with each other, then those that are kept.
    """
    await_predecessors(PDL_WAIT)
    start_dependents(PDL_TRIGGER)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)[:, None]
    pair = tl.arange(0, BLOCK_PAIRS)[None, :]
    mask = (head < HEADS + 2 * KV_HEADS) & (pair < PAIRS)
    i, j = _elements(pair, PAIRS, ROTATED_PAIRS)
    column = head * (2 * PAIRS)
    first, second = _load_parts(qkv + row * qkv_stride + column, i, j, mask, split_stride, SPLIT_K)
    first, second = _add(first, second, delta, bias, row, delta_stride, column, i, j, mask)

    is_query = head < HEADS
    normed_first, normed_second = _norm(first, second, q_norm, k_norm, is_query, i, j, pair < PAIRS, eps, PAIRS)
    position = tl.load(positions + row).to(tl.int64)
    row_cos, row_sin = cos + position * cos_stride + pair, sin + position * sin_stride + pair
    rotated_first, rotated_second = _rotate(normed_first, normed_second, row_cos, row_sin, pair < ROTATED_PAIRS)

    q_head = q_out + row * q_row_stride + head * q_head_stride
    _store_pairs(q_head, i, j, rotated_first, rotated_second, mask & is_query)
    slot = tl.load(slot_mapping + row).to(tl.int64)
    has_slot = mask & (slot >= 0)
    key = _in_cache(keys, slot, head - HEADS, key_page_stride, key_slot_stride, key_head_stride, PAGE_SIZE)
    is_key = (head >= HEADS) & (head < HEADS + KV_HEADS)
    _store_pairs(key, i, j, rotated_first, rotated_second, has_slot & is_key)
    value_head = head - HEADS - KV_HEADS
    value = _in_cache(values, slot, value_head, value_page_stride, value_slot_stride, value_head_stride, PAGE_SIZE)
    _store_pairs(value, i, j, first, second, has_slot & (value_head >= 0))


@triton.jit
def _load_parts(heads, i, j, mask, split_stride, SPLIT_K: tl.constexpr):
    """Two float32 [heads, pairs]: the elements i and j of each head, summed over the splits."""
    first = load_splits(heads + i, split_stride, mask, SPLIT_K)
    second = load_splits(heads + j, split_stride, mask, SPLIT_K)
    return first, second


@triton.jit
def _add(first, second, delta, bias, row, delta_stride, column, i, j, mask):
    """Both elements of each pair, with delta and bias, where there are any."""
    if delta is not None:
        delta_first, delta_second = _load_pairs(delta + row * delta_stride + column, i, j, mask)
        first += delta_first
        second += delta_second
    if bias is not None:
        bias_first, bias_second = _load_pairs(bias + column, i, j, mask)
        first += bias_first
        second += bias_second
    return first, second


@triton.jit
def _elements(pair, PAIRS: tl.constexpr, ROTATED_PAIRS: tl.constexpr):
    """The two elements of a pair in its head. Rotated pairs come first; the others fill the rest of the head."""
    if ROTATED_PAIRS == PAIRS:
        return pair, pair + PAIRS
    else:
        rotates = pair < ROTATED_PAIRS
        return tl.where(rotates, pair, pair + ROTATED_PAIRS), tl.where(rotates, pair + ROTATED_PAIRS, pair + PAIRS)


@triton.jit
def _load_pairs(heads, i, j, mask):
    """Two float32 [heads, pairs]: the elements i and j of each head."""
    first = tl.load(heads + i, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(heads + j, mask=mask, other=0.0).to(tl.float32)
    return first, second


@triton.jit
def _norm(first, second, q_norm, k_norm, is_query, i, j, mask, eps, PAIRS: tl.constexpr):
    """Both elements of each pair, normed if the model norms its heads."""
    if q_norm is not None:
        scale = _norm_scale(first, second, eps, PAIRS)
        first *= scale * _norm_weight(q_norm, k_norm, is_query, i, mask)
        second *= scale * _norm_weight(q_norm, k_norm, is_query, j, mask)
    return first, second


@triton.jit
def _norm_scale(first, second, eps, PAIRS: tl.constexpr):
    """float32 [heads, 1]: 1 over the root mean square of each head."""
    return tl.rsqrt(tl.sum(first * first + second * second, axis=1, keep_dims=True) / (2 * PAIRS) + eps)


@triton.jit
def _norm_weight(q_norm, k_norm, is_query, element, mask):
    """float32 [heads, pairs]: the weight of each head's own norm; values get keys' weights, and are stored without."""
    q_weight = tl.load(q_norm + element, mask=mask, other=0.0).to(tl.float32)
    k_weight = tl.load(k_norm + element, mask=mask, other=0.0).to(tl.float32)
    return tl.where(is_query, q_weight, k_weight)


@triton.jit
def _rotate(first, second, cos, sin, mask):
    """Both elements of each pair, rotated by the pairs' angles; those outside ``mask`` stay as they are."""
    cosine = tl.load(cos, mask=mask, other=1.0)
    sine = tl.load(sin, mask=mask, other=0.0)
    return first * cosine - second * sine, second * cosine + first * sine


@triton.jit
def _in_cache(cache, slot, kv_head, page_stride, slot_stride, head_stride, PAGE_SIZE: tl.constexpr):
    """Pointers [heads, 1] to the heads of a token's slot."""
    page = slot // PAGE_SIZE
    offset = slot % PAGE_SIZE
    return cache + (page * page_stride + offset * slot_stride + kv_head * head_stride)


@triton.jit
def _store_pairs(heads, i, j, first, second, mask):
    tl.store(heads + i, first.to(heads.dtype.element_ty), mask=mask)
    tl.store(heads + j, second.to(heads.dtype.element_ty), mask=mask)
