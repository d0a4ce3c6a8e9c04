"""Blocks of tokens in the attention kernels for Hopper: where they lie, copies of them, and their weights."""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy


# Kernels build these tuples by keyword: the compiler's cache does not see the order of fields.
class HopperSizes(NamedTuple):
    """The sizes that a program is compiled for. The launch has the reasons (`punica_kernels.gpu.attention_config`)."""

    TILE_WORDS: gl.constexpr
    PAGE_SIZE: gl.constexpr
    KV_HEADS: gl.constexpr
    #: Query heads of one kv head, and the next power of two.
    GROUP: gl.constexpr
    BLOCK_GROUP: gl.constexpr
    #: Tokens that a row sees; 0: all.
    WINDOW: gl.constexpr


class SharedBlocks(NamedTuple):
    """Shared memory of a tile's queries, and of blocks of keys and of values."""

    q: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor


class Context(NamedTuple):
    """The keys and values that a tile attends to. Strides are in rows of HEAD_DIM numbers."""

    #: [1, HEAD_DIM]: the first row of all keys, and of all values.
    k: gl.tensor
    v: gl.tensor
    #: The context's page numbers.
    pages: gl.tensor
    #: int32 [BLOCK_N]: the tokens of a block.
    offs_n: gl.tensor
    num_tokens: gl.tensor
    page_rows: gl.tensor
    slot_rows: gl.tensor
    #: The kv head's row in a slot.
    head_row: gl.tensor


class Scoring(NamedTuple):
    """How scores are made and hidden."""

    scale: gl.tensor
    log2_soft_cap: gl.tensor | None
    #: int32 [rows]: the last token of the context that each row sees, and the last one that it would see beyond it.
    last: gl.tensor
    last_visible: gl.tensor


@gluon.jit
def kv_rows(block, context, BLOCK_N: gl.constexpr, sizes: gl.constexpr):
    """Where a block's keys and values lie: the last token's past the context, so that nothing else is ever read."""
    token = gl.minimum(block * BLOCK_N + context.offs_n, context.num_tokens - 1)
    page = gl.load(context.pages + token // sizes.PAGE_SIZE)
    return page * context.page_rows + (token % sizes.PAGE_SIZE) * context.slot_rows + context.head_row


@gluon.jit
def copy_block(block_shared, pool, kv_row, HEAD_DIM: gl.constexpr):
    """Requests a block of keys or values."""
    async_copy.async_copy_global_to_shared(block_shared, pool + gl.expand_dims(kv_row, 1).to(gl.int64) * HEAD_DIM)


@gluon.jit
def weigh(block, scores, m_i, l_i, scoring, WINDOW: gl.constexpr, IS_MASKED: gl.constexpr):
    """exp(score - the highest one so far), to base 2, that highest score, the weights' sum, and the factor of all sums
    of earlier blocks.
    """
    if scoring.log2_soft_cap is not None:
        # tanh(x) = 1 - 2 / (e^2x + 1), and 1 for every x above 30.
        tanh = 1.0 - 2.0 / (gl.exp(2.0 * gl.minimum(scores * scoring.scale, 30.0)) + 1.0)
        scores = scoring.log2_soft_cap * tanh
        factor = 1.0
    else:
        factor = scoring.scale
    if IS_MASKED:
        BLOCK_N: gl.constexpr = scores.shape[1]
        token = gl.expand_dims(block * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, scores.type.layout)), 0)
        is_visible = token <= gl.expand_dims(scoring.last, 1)
        if WINDOW:
            is_visible = is_visible & (token > gl.expand_dims(scoring.last_visible, 1) - WINDOW)
        scores = gl.where(is_visible, scores, float("-inf"))
    m_new = gl.maximum(m_i, gl.max(scores, axis=1) * factor)
    weights = gl.exp2(scores * factor - gl.expand_dims(m_new, 1))
    alpha = gl.exp2(m_i - m_new)
    return weights, m_new, l_i * alpha + gl.sum(weights, axis=1), alpha
