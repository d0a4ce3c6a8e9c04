"""Paged attention of prompts on Hopper GPUs (compute capability 9.0), in Gluon: softmax runs while products do.

The order of steps within a program is that of FlashAttention-3 (Shah et al., 2024): while the weights of a block of
tokens multiply its values, those of the next block are computed, whose scores were requested just before. Triton's own
pipeliner lets the softmax wait for all products instead. Tiles, splits and arguments are those of
`punica_kernels.gpu.paged_attention`, which launches this kernel.

Nothing may read a product's registers while any other is in flight, or the compiler makes them wait for each other.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from punica_kernels.gpu.attention_constants import (
    FIRST_PAGE,
    FIRST_ROW,
    LAST_VISIBLE,
    MIN_SCORE,
    NUM_ROWS,
    NUM_SPLITS,
    NUM_TOKENS,
)
from punica_kernels.gpu.attention_splits import Splits
from punica_kernels.gpu.hopper_blocks import Context, HopperSizes, Scoring, SharedBlocks, copy_block, kv_rows, weigh
from punica_kernels.gpu.hopper_splits import HopperTile, tile_rows, write_rows
from punica_kernels.gpu.online_softmax import Sums
from punica_kernels.gpu.work_tile import Heads


class Walk(NamedTuple):
    """The state between two blocks."""

    #: The newest block's weights.
    p: gl.tensor
    #: The weighted values of the blocks before it.
    acc: gl.tensor
    #: The highest scores, and the sums of weights, of all blocks so far.
    m_i: gl.tensor
    l_i: gl.tensor
    #: Where the next values lie.
    kv_row: gl.tensor


@gluon.jit
def hopper_attention(
    out,
    q,
    keys,
    values,
    pages,
    tiles,
    split_acc,
    split_m,
    split_l,
    counts,
    scale,
    log2_soft_cap,
    out_row_stride,
    out_head_stride,
    q_row_stride,
    q_head_stride,
    page_rows,
    slot_rows,
    head_rows,
    TILE_WORDS: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    PAGE_SIZE: gl.constexpr,
    KV_HEADS: gl.constexpr,
    GROUP: gl.constexpr,
    BLOCK_GROUP: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    DEPTH: gl.constexpr,
    WINDOW: gl.constexpr,
    PDL_TRIGGER: gl.constexpr,
    PDL_WAIT: gl.constexpr,
):
    """One program per kv head and work tile. Keys and values are rows of HEAD_DIM numbers: `page_rows`, `slot_rows` and
    `head_rows` are their strides in such rows. DEPTH blocks of tokens are requested ahead.
    """
    sizes: gl.constexpr = HopperSizes(
        TILE_WORDS=TILE_WORDS,
        PAGE_SIZE=PAGE_SIZE,
        KV_HEADS=KV_HEADS,
        GROUP=GROUP,
        BLOCK_GROUP=BLOCK_GROUP,
        WINDOW=WINDOW,
    )
    kv_head = gl.program_id(0)
    tiles += gl.program_id(1) * TILE_WORDS
    first_row = gl.load(tiles + FIRST_ROW)
    if first_row < 0:
        if PDL_WAIT:
            # A PDL dependent of this kernel also relies on its predecessor.
            gdc_wait()
        return
    tile = HopperTile(
        words=tiles,
        kv_head=kv_head,
        first_row=first_row,
        num_rows=gl.load(tiles + NUM_ROWS),
        num_tokens=gl.load(tiles + NUM_TOKENS),
        last_visible=gl.load(tiles + LAST_VISIBLE),
        num_splits=gl.load(tiles + NUM_SPLITS),
    )

    # 16 bytes a thread.
    COPY_LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // HEAD_DIM, HEAD_DIM // 8], [gl.num_warps(), 1], [1, 0])
    shared = _allocate(q.dtype.element_ty, BLOCK_M, BLOCK_N, HEAD_DIM, DEPTH)
    offs_n = gl.arange(0, BLOCK_N, gl.SliceLayout(1, COPY_LAYOUT))
    offs_d = gl.expand_dims(gl.arange(0, HEAD_DIM, gl.SliceLayout(0, COPY_LAYOUT)), 0)
    pages += gl.load(tiles + FIRST_PAGE)
    context = Context(
        k=keys + offs_d,
        v=values + offs_d,
        pages=pages,
        offs_n=offs_n,
        num_tokens=tile.num_tokens,
        page_rows=page_rows,
        slot_rows=slot_rows,
        head_row=kv_head * head_rows,
    )
    kv_row = kv_rows(0, context, BLOCK_N, sizes)
    if PDL_WAIT:
        gdc_wait()
    if PDL_TRIGGER:
        gdc_launch_dependents()
    kv_row = _copy_first_blocks(kv_row, context, shared, sizes)
    query, member, is_row = tile_rows(0, BLOCK_M, tile.num_rows, sizes, gl.SliceLayout(1, COPY_LAYOUT))
    row = (first_row + query).to(gl.int64) * q_row_stride + (kv_head * GROUP + member) * q_head_stride
    queries = q + gl.expand_dims(row, 1) + offs_d
    shared.q.store(gl.load(queries, mask=gl.expand_dims(is_row, 1), other=0.0))

    sums = _attend(kv_row, tile, context, shared, scale, log2_soft_cap, sizes)

    target = Heads(first=out, row_stride=out_row_stride, head_stride=out_head_stride)
    splits = Splits(acc=split_acc, m_i=split_m, l_i=split_l, counts=counts)
    write_rows(0, 1, tile, sums, target, splits, sizes, COPY_LAYOUT)


@gluon.jit
def _allocate(
    dtype: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, DEPTH: gl.constexpr
):
    """Shared memory of the queries, and of one block more than DEPTH of keys and of values."""
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    q_shared = gl.allocate_shared_memory(dtype, [BLOCK_M, HEAD_DIM], SHARED)
    k_shared = gl.allocate_shared_memory(dtype, [DEPTH + 1, BLOCK_N, HEAD_DIM], SHARED)
    v_shared = gl.allocate_shared_memory(dtype, [DEPTH + 1, BLOCK_N, HEAD_DIM], SHARED)
    return SharedBlocks(q=q_shared, k=k_shared, v=v_shared)


@gluon.jit
def _copy_first_blocks(kv_row, context, shared, sizes: gl.constexpr):
    """Requests DEPTH blocks of values and one more of keys. Returns where the next values lie."""
    DEPTH: gl.constexpr = shared.k.shape[0] - 1
    copy_block(shared.k.index(0), context.k, kv_row, shared.k.shape[2])
    async_copy.commit_group()
    for block in gl.static_range(DEPTH):
        kv_row = _copy_values_and_next_keys(block, kv_row, context, shared, sizes)
    return kv_row


@gluon.jit
def _attend(kv_row, tile, context, shared, scale, log2_soft_cap, sizes: gl.constexpr):
    """The rows' weighted values, not yet divided by the sum of their weights, the highest scores, and those sums.
    DEPTH blocks of values and one more of keys were requested; `kv_row` is where the next values lie.
    """
    num_tokens = tile.num_tokens
    BLOCK_M: gl.constexpr = shared.q.shape[0]
    BLOCKS: gl.constexpr = shared.k.shape[0]
    BLOCK_N: gl.constexpr = shared.k.shape[1]
    HEAD_DIM: gl.constexpr = shared.k.shape[2]
    WINDOW: gl.constexpr = sizes.WINDOW
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BLOCK_N, 16])
    ACC_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, HEAD_DIM, 16])
    S_ROWS: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)

    # Unused rows see what the last one sees: something, so that nothing is divided by zero.
    query = gl.arange(0, BLOCK_M, S_ROWS) // sizes.BLOCK_GROUP
    last_visible = tile.last_visible + gl.minimum(query, tile.num_rows - 1)
    scoring = Scoring(
        scale=scale,
        log2_soft_cap=log2_soft_cap,
        last=gl.minimum(last_visible, num_tokens - 1),
        last_visible=last_visible,
    )
    m_i = gl.full([BLOCK_M], MIN_SCORE, gl.float32, S_ROWS)
    l_i = gl.zeros([BLOCK_M], gl.float32, S_ROWS)
    acc = gl.zeros([BLOCK_M, HEAD_DIM], gl.float32, ACC_LAYOUT)
    async_copy.wait_group(BLOCKS - 1)
    fence_async_shared()
    scores = warpgroup_mma_wait(0, deps=[_start_scores(0, shared, S_LAYOUT)])
    weights, m_i, l_i, _ = weigh(0, scores, m_i, l_i, scoring, WINDOW, True)
    p = gl.convert_layout(weights.to(shared.v.dtype), gl.DotOperandLayout(0, ACC_LAYOUT, 2))

    # All rows see all tokens of the blocks from `first_full` to `end_full`.
    num_blocks = gl.cdiv(num_tokens, BLOCK_N)
    first_full = 1
    if WINDOW:
        num_hidden = tile.last_visible + tile.num_rows - WINDOW
        first_full = gl.minimum(gl.maximum(gl.cdiv(num_hidden, BLOCK_N), 1), num_blocks)
    end_full = gl.maximum(gl.minimum(tile.last_visible + 1, num_tokens) // BLOCK_N, first_full)
    walk = Walk(p=p, acc=acc, m_i=m_i, l_i=l_i, kv_row=kv_row)
    if WINDOW:
        for block in range(1, first_full):
            walk = _step(block, walk, context, shared, scoring, S_LAYOUT, sizes, True)
    for block in range(first_full, end_full):
        walk = _step(block, walk, context, shared, scoring, S_LAYOUT, sizes, False)
    for block in range(end_full, num_blocks):
        walk = _step(block, walk, context, shared, scoring, S_LAYOUT, sizes, True)
    async_copy.wait_group(0)
    fence_async_shared()
    acc = warpgroup_mma(walk.p, shared.v.index((num_blocks - 1) % BLOCKS), walk.acc, is_async=True)
    return Sums(m_i=walk.m_i, l_i=walk.l_i, acc=warpgroup_mma_wait(0, deps=[acc]))


@gluon.jit
def _copy_values_and_next_keys(block, kv_row, context, shared, sizes: gl.constexpr):
    """Requests the values of `block`, which lie at `kv_row`, and the next block's keys. Returns where these lie."""
    BLOCKS: gl.constexpr = shared.k.shape[0]
    HEAD_DIM: gl.constexpr = shared.k.shape[2]
    copy_block(shared.v.index(block % BLOCKS), context.v, kv_row, HEAD_DIM)
    kv_row = kv_rows(block + 1, context, shared.k.shape[1], sizes)
    copy_block(shared.k.index((block + 1) % BLOCKS), context.k, kv_row, HEAD_DIM)
    async_copy.commit_group()
    return kv_row


@gluon.jit
def _start_scores(block, shared, S_LAYOUT: gl.constexpr):
    """Starts the product of the queries and a block's keys."""
    keys = shared.k.index(block % shared.k.shape[0]).permute((1, 0))
    zeros = gl.full([shared.q.shape[0], shared.k.shape[1]], 0.0, gl.float32, S_LAYOUT)
    return warpgroup_mma(shared.q, keys, zeros, use_acc=False, is_async=True)


@gluon.jit
def _step(
    block,
    walk,
    context,
    shared,
    scoring,
    S_LAYOUT: gl.constexpr,
    sizes: gl.constexpr,
    IS_MASKED: gl.constexpr,
):
    """The weights of `block`, beside the product of the weights and the values of the block before it."""
    BLOCKS: gl.constexpr = shared.v.shape[0]
    async_copy.wait_group(BLOCKS - 2)
    fence_async_shared()
    scores = _start_scores(block, shared, S_LAYOUT)
    acc = warpgroup_mma(walk.p, shared.v.index((block - 1) % BLOCKS), walk.acc, is_async=True)
    # Their places are free: all warps have waited for the products that read what was there.
    kv_row = _copy_values_and_next_keys(block + (BLOCKS - 2), walk.kv_row, context, shared, sizes)
    scores = warpgroup_mma_wait(1, deps=[scores])
    weights, m_i, l_i, alpha = weigh(block, scores, walk.m_i, walk.l_i, scoring, sizes.WINDOW, IS_MASKED)
    acc = warpgroup_mma_wait(0, deps=[acc])
    acc = acc * gl.expand_dims(gl.convert_layout(alpha, gl.SliceLayout(1, acc.type.layout)), 1)
    p = gl.convert_layout(weights.to(shared.v.dtype), walk.p.type.layout)
    return Walk(p=p, acc=acc, m_i=m_i, l_i=l_i, kv_row=kv_row)
