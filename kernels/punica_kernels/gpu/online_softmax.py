"""The walk of `_paged_attention` over a context, with the online softmax of FlashAttention. Scores are to base 2."""

from typing import NamedTuple

import triton
import triton.language as tl

from punica_kernels.gpu.attention_constants import MIN_SCORE
from punica_kernels.gpu.work_tile import columns


class Cache(NamedTuple):
    """Keys and values of one kv head, and the pages of one context."""

    k: tl.tensor
    v: tl.tensor
    pages: tl.tensor
    num_tokens: tl.tensor
    key_page_stride: tl.tensor
    key_slot_stride: tl.tensor
    value_page_stride: tl.tensor
    value_slot_stride: tl.tensor


class Scoring(NamedTuple):
    """The queries to score, [BLOCK_M, BLOCK_D], the last token that each row sees, and the factors of scores."""

    queries: tl.tensor
    last_visible: tl.tensor
    scale: tl.tensor
    log2_soft_cap: tl.tensor | None


class Sums(NamedTuple):
    """Each row's highest score, the sum of its weights, and its weighted values, over the tokens so far."""

    m_i: tl.tensor
    l_i: tl.tensor
    acc: tl.tensor


@triton.jit
def attend(cache, scoring, tile, sizes: tl.constexpr):
    """The sums over all tokens that the rows of a tile see."""
    BLOCK_N: tl.constexpr = sizes.BLOCK_N
    sums = Sums(
        m_i=tl.full((sizes.BLOCK_M,), MIN_SCORE, dtype=tl.float32),
        l_i=tl.zeros((sizes.BLOCK_M,), dtype=tl.float32),
        acc=tl.zeros((sizes.BLOCK_M, sizes.BLOCK_D), dtype=tl.float32),
    )
    # All rows see all tokens from `first_full` to `end_full`, in whole blocks. Programs of few rows walk once: they
    # would wait for memory at the begin of each walk.
    first_full = 0
    end_full = 0
    if sizes.BLOCK_M >= 64:
        if sizes.WINDOW:
            num_hidden = tl.maximum(tile.last_visible + tile.num_rows - sizes.WINDOW, 0)
            first_full = tl.minimum(tl.cdiv(num_hidden, BLOCK_N) * BLOCK_N, tile.num_tokens)
            sums = _walk(0, first_full, sums, cache, scoring, sizes, True)
        num_seen_by_all = tl.minimum(tile.last_visible + 1, tile.num_tokens)
        end_full = tl.maximum(num_seen_by_all // BLOCK_N * BLOCK_N, first_full)
        sums = _walk(first_full, end_full, sums, cache, scoring, sizes, False)
    return _walk(end_full, tile.num_tokens, sums, cache, scoring, sizes, True)


@triton.jit
def _walk(begin, end, sums, cache, scoring, sizes: tl.constexpr, IS_MASKED: tl.constexpr):
    """Adds the tokens from `begin` to `end` to the sums."""
    offs_n = tl.arange(0, sizes.BLOCK_N)
    offs_d = columns(sizes)
    last = tl.minimum(scoring.last_visible, cache.num_tokens - 1)[:, None]
    for start in tl.range(begin, end, sizes.BLOCK_N, num_stages=sizes.STAGES):
        token = start + offs_n
        # Past the context the cache holds anything, even NaN, which a weight of zero would not silence. The last token
        # is read there instead.
        k, v = _load_block(cache, tl.minimum(token, cache.num_tokens - 1) if IS_MASKED else token, offs_d, sizes)
        scores, factor = _scores(k, scoring)
        if IS_MASKED:
            is_visible = token[None, :] <= last
            if sizes.WINDOW:
                is_visible &= token[None, :] > scoring.last_visible[:, None] - sizes.WINDOW
            scores = tl.where(is_visible, scores, float("-inf"))
        sums = _softmax_update(sums, scores, factor, v)
    return sums


@triton.jit
def _load_block(cache, token, offs_d, sizes: tl.constexpr):
    """[BLOCK_N, BLOCK_D] keys and values of some tokens."""
    page = tl.load(cache.pages + token // sizes.PAGE_SIZE).to(tl.int64)[:, None]
    slot = (token % sizes.PAGE_SIZE)[:, None]
    k = _load_rows(cache.k + page * cache.key_page_stride + slot * cache.key_slot_stride + offs_d, offs_d, sizes)
    v = _load_rows(cache.v + page * cache.value_page_stride + slot * cache.value_slot_stride + offs_d, offs_d, sizes)
    return k, v


@triton.jit
def _load_rows(rows, offs_d, sizes: tl.constexpr):
    """Keys or values, and zeros beyond their HEAD_DIM numbers."""
    if sizes.HEAD_DIM == sizes.BLOCK_D:
        return tl.load(rows)
    return tl.load(rows, mask=offs_d < sizes.HEAD_DIM, other=0.0)


@triton.jit
def _scores(k, scoring):
    """[BLOCK_M, BLOCK_N] scores and the factor that they still lack: multiplied later, it joins another product."""
    scores = tl.dot(scoring.queries, tl.trans(k), input_precision="ieee")
    if scoring.log2_soft_cap is not None:
        # tanh(x) = 1 - 2 / (e^2x + 1), and 1 for every x above 30.
        tanh = 1.0 - 2.0 / (tl.exp(2.0 * tl.minimum(scores * scoring.scale, 30.0)) + 1.0)
        return scoring.log2_soft_cap * tanh, 1.0
    else:
        return scores, scoring.scale


@triton.jit
def _softmax_update(sums, scores, factor, v):
    """The sums with one more block of tokens."""
    m_new = tl.maximum(sums.m_i, tl.max(scores, axis=1) * factor)
    alpha = tl.exp2(sums.m_i - m_new)
    p = tl.exp2(scores * factor - m_new[:, None])
    l_i = sums.l_i * alpha + tl.sum(p, axis=1)
    acc = sums.acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
    return Sums(m_i=m_new, l_i=l_i, acc=acc)
