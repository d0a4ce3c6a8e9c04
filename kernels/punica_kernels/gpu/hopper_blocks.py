"""Blocks of tokens in the attention kernels for Hopper: where they lie, copies of them, and their weights."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy


@gluon.jit
def kv_rows(block, cache, BLOCK_N: gl.constexpr, PAGE_SIZE: gl.constexpr):
    """Where a block's keys and values lie: the last token's past the context, so that nothing else is ever read."""
    _, _, pages, offs_n, num_tokens, page_rows, slot_rows, head_row = cache
    token = gl.minimum(block * BLOCK_N + offs_n, num_tokens - 1)
    return gl.load(pages + token // PAGE_SIZE) * page_rows + (token % PAGE_SIZE) * slot_rows + head_row


@gluon.jit
def copy_block(block_shared, pool, kv_row, HEAD_DIM: gl.constexpr):
    """Requests a block of keys or values."""
    async_copy.async_copy_global_to_shared(block_shared, pool + gl.expand_dims(kv_row, 1).to(gl.int64) * HEAD_DIM)


@gluon.jit
def weigh(block, scores, m_i, l_i, scoring, WINDOW: gl.constexpr, IS_MASKED: gl.constexpr):
    """exp(score - the highest one so far), to base 2, that highest score, the weights' sum, and the factor of all sums
    of earlier blocks.
    """
    scale, log2_soft_cap, last, last_visible = scoring
    if log2_soft_cap is not None:
        # tanh(x) = 1 - 2 / (e^2x + 1), and 1 for every x above 30.
        scores = log2_soft_cap * (1.0 - 2.0 / (gl.exp(2.0 * gl.minimum(scores * scale, 30.0)) + 1.0))
        factor = 1.0
    else:
        factor = scale
    if IS_MASKED:
        BLOCK_N: gl.constexpr = scores.shape[1]
        token = gl.expand_dims(block * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, scores.type.layout)), 0)
        is_visible = token <= gl.expand_dims(last, 1)
        if WINDOW:
            is_visible = is_visible & (token > gl.expand_dims(last_visible, 1) - WINDOW)
        scores = gl.where(is_visible, scores, float("-inf"))
    m_new = gl.maximum(m_i, gl.max(scores, axis=1) * factor)
    weights = gl.exp2(scores * factor - gl.expand_dims(m_new, 1))
    alpha = gl.exp2(m_i - m_new)
    return weights, m_new, l_i * alpha + gl.sum(weights, axis=1), alpha
