"""Paged attention of prompts on Hopper GPUs (compute capability 9.0), in Gluon: softmax runs while products do.

The order of steps within a program is that of FlashAttention-3 (Shah et al., 2024): while the weights of a block of
tokens multiply its values, those of the next block are computed, whose scores were requested just before. Triton's own
pipeliner lets the softmax wait for all products instead. Tiles, splits and arguments are those of
`punica_kernels.gpu.paged_attention`, which launches this kernel.

Nothing may read a product's registers while any other is in flight, or the compiler makes them wait for each other.
"""

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
from punica_kernels.gpu.hopper_blocks import copy_block, kv_rows, weigh
from punica_kernels.gpu.hopper_splits import tile_rows, write_rows


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
    kv_head = gl.program_id(0)
    tiles += gl.program_id(1) * TILE_WORDS
    first_row = gl.load(tiles + FIRST_ROW)
    if first_row < 0:
        if PDL_WAIT:
            # A PDL dependent of this kernel also relies on its predecessor.
            gdc_wait()
        return
    num_rows = gl.load(tiles + NUM_ROWS)
    num_tokens = gl.load(tiles + NUM_TOKENS)
    first_row_last_visible = gl.load(tiles + LAST_VISIBLE)
    num_splits = gl.load(tiles + NUM_SPLITS)

    # 16 bytes a thread.
    COPY_LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // HEAD_DIM, HEAD_DIM // 8], [gl.num_warps(), 1], [1, 0])
    shared = _allocate(q.dtype.element_ty, BLOCK_M, BLOCK_N, HEAD_DIM, DEPTH)
    offs_n = gl.arange(0, BLOCK_N, gl.SliceLayout(1, COPY_LAYOUT))
    offs_d = gl.expand_dims(gl.arange(0, HEAD_DIM, gl.SliceLayout(0, COPY_LAYOUT)), 0)
    pages += gl.load(tiles + FIRST_PAGE)
    cache = (keys + offs_d, values + offs_d, pages, offs_n, num_tokens, page_rows, slot_rows, kv_head * head_rows)
    kv_row = kv_rows(0, cache, BLOCK_N, PAGE_SIZE)
    if PDL_WAIT:
        gdc_wait()
    if PDL_TRIGGER:
        gdc_launch_dependents()
    kv_row = _copy_first_blocks(kv_row, cache, shared, PAGE_SIZE)
    query, member, is_row = tile_rows(0, BLOCK_M, num_rows, GROUP, BLOCK_GROUP, gl.SliceLayout(1, COPY_LAYOUT))
    row = (first_row + query).to(gl.int64) * q_row_stride + (kv_head * GROUP + member) * q_head_stride
    queries = q + gl.expand_dims(row, 1) + offs_d
    shared[0].store(gl.load(queries, mask=gl.expand_dims(is_row, 1), other=0.0))

    rows_shown = (num_rows, first_row_last_visible, BLOCK_GROUP)
    sums = _attend(kv_row, cache, shared, rows_shown, scale, log2_soft_cap, PAGE_SIZE, WINDOW)

    tile = (tiles, first_row, kv_head, num_rows, num_splits)
    target = (out, out_row_stride, out_head_stride)
    splits = (split_acc, split_m, split_l, counts)
    write_rows(0, 1, tile, sums, target, splits, KV_HEADS, GROUP, BLOCK_GROUP, COPY_LAYOUT)


@gluon.jit
def _allocate(
    dtype: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, DEPTH: gl.constexpr
):
    """Shared memory of the queries, and of one block more than DEPTH of keys and of values."""
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    q_shared = gl.allocate_shared_memory(dtype, [BLOCK_M, HEAD_DIM], SHARED)
    k_shared = gl.allocate_shared_memory(dtype, [DEPTH + 1, BLOCK_N, HEAD_DIM], SHARED)
    v_shared = gl.allocate_shared_memory(dtype, [DEPTH + 1, BLOCK_N, HEAD_DIM], SHARED)
    return q_shared, k_shared, v_shared


@gluon.jit
def _copy_first_blocks(kv_row, cache, shared, PAGE_SIZE: gl.constexpr):
    """Requests DEPTH blocks of values and one more of keys. Returns where the next values lie."""
    _, k_shared, _ = shared
    DEPTH: gl.constexpr = k_shared.shape[0] - 1
    copy_block(k_shared.index(0), cache[0], kv_row, k_shared.shape[2])
    async_copy.commit_group()
    for block in gl.static_range(DEPTH):
        kv_row = _copy_values_and_next_keys(block, kv_row, cache, shared, PAGE_SIZE)
    return kv_row


@gluon.jit
def _attend(kv_row, cache, shared, rows, scale, log2_soft_cap, PAGE_SIZE: gl.constexpr, WINDOW: gl.constexpr):
    """The rows' weighted values, not yet divided by the sum of their weights, the highest scores, and those sums.
    DEPTH blocks of values and one more of keys were requested; `kv_row` is where the next values lie.
    """
    num_rows, first_row_last_visible, BLOCK_GROUP = rows
    q_shared, k_shared, v_shared = shared
    num_tokens = cache[4]
    BLOCK_M: gl.constexpr = q_shared.shape[0]
    BLOCKS: gl.constexpr = k_shared.shape[0]
    BLOCK_N: gl.constexpr = k_shared.shape[1]
    HEAD_DIM: gl.constexpr = k_shared.shape[2]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BLOCK_N, 16])
    ACC_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, HEAD_DIM, 16])
    S_ROWS: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)

    # Unused rows see what the last one sees: something, so that nothing is divided by zero.
    query = gl.arange(0, BLOCK_M, S_ROWS) // BLOCK_GROUP
    last_visible = first_row_last_visible + gl.minimum(query, num_rows - 1)
    scoring = (scale, log2_soft_cap, gl.minimum(last_visible, num_tokens - 1), last_visible)
    m_i = gl.full([BLOCK_M], MIN_SCORE, gl.float32, S_ROWS)
    l_i = gl.zeros([BLOCK_M], gl.float32, S_ROWS)
    acc = gl.zeros([BLOCK_M, HEAD_DIM], gl.float32, ACC_LAYOUT)
    async_copy.wait_group(BLOCKS - 1)
    fence_async_shared()
    scores = warpgroup_mma_wait(0, deps=[_start_scores(0, shared, S_LAYOUT)])
    weights, m_i, l_i, _ = weigh(0, scores, m_i, l_i, scoring, WINDOW, True)
    p = gl.convert_layout(weights.to(v_shared.dtype), gl.DotOperandLayout(0, ACC_LAYOUT, 2))

    # All rows see all tokens of the blocks from `first_full` to `end_full`.
    num_blocks = gl.cdiv(num_tokens, BLOCK_N)
    first_full = 1
    if WINDOW:
        num_hidden = first_row_last_visible + num_rows - WINDOW
        first_full = gl.minimum(gl.maximum(gl.cdiv(num_hidden, BLOCK_N), 1), num_blocks)
    end_full = gl.maximum(gl.minimum(first_row_last_visible + 1, num_tokens) // BLOCK_N, first_full)
    sums = (p, acc, m_i, l_i, kv_row)
    if WINDOW:
        for block in range(1, first_full):
            sums = _step(block, sums, cache, shared, scoring, S_LAYOUT, PAGE_SIZE, WINDOW, True)
    for block in range(first_full, end_full):
        sums = _step(block, sums, cache, shared, scoring, S_LAYOUT, PAGE_SIZE, WINDOW, False)
    for block in range(end_full, num_blocks):
        sums = _step(block, sums, cache, shared, scoring, S_LAYOUT, PAGE_SIZE, WINDOW, True)
    p, acc, m_i, l_i, kv_row = sums
    async_copy.wait_group(0)
    fence_async_shared()
    acc = warpgroup_mma(p, v_shared.index((num_blocks - 1) % BLOCKS), acc, is_async=True)
    return warpgroup_mma_wait(0, deps=[acc]), m_i, l_i


@gluon.jit
def _copy_values_and_next_keys(block, kv_row, cache, shared, PAGE_SIZE: gl.constexpr):
    """Requests the values of `block`, which lie at `kv_row`, and the next block's keys. Returns where these lie."""
    _, k_shared, v_shared = shared
    BLOCKS: gl.constexpr = k_shared.shape[0]
    HEAD_DIM: gl.constexpr = k_shared.shape[2]
    copy_block(v_shared.index(block % BLOCKS), cache[1], kv_row, HEAD_DIM)
    kv_row = kv_rows(block + 1, cache, k_shared.shape[1], PAGE_SIZE)
    copy_block(k_shared.index((block + 1) % BLOCKS), cache[0], kv_row, HEAD_DIM)
    async_copy.commit_group()
    return kv_row


@gluon.jit
def _start_scores(block, shared, S_LAYOUT: gl.constexpr):
    """Starts the product of the queries and a block's keys."""
    q_shared, k_shared, _ = shared
    keys = k_shared.index(block % k_shared.shape[0]).permute((1, 0))
    zeros = gl.full([q_shared.shape[0], k_shared.shape[1]], 0.0, gl.float32, S_LAYOUT)
    return warpgroup_mma(q_shared, keys, zeros, use_acc=False, is_async=True)


@gluon.jit
def _step(
    block,
    sums,
    cache,
    shared,
    scoring,
    S_LAYOUT: gl.constexpr,
    PAGE_SIZE: gl.constexpr,
    WINDOW: gl.constexpr,
    IS_MASKED: gl.constexpr,
):
    """The weights of `block`, beside the product of the weights and the values of the block before it."""
    p, acc, m_i, l_i, kv_row = sums
    _, _, v_shared = shared
    BLOCKS: gl.constexpr = v_shared.shape[0]
    async_copy.wait_group(BLOCKS - 2)
    fence_async_shared()
    scores = _start_scores(block, shared, S_LAYOUT)
    acc = warpgroup_mma(p, v_shared.index((block - 1) % BLOCKS), acc, is_async=True)
    # Their places are free: all warps have waited for the products that read what was there.
    kv_row = _copy_values_and_next_keys(block + (BLOCKS - 2), kv_row, cache, shared, PAGE_SIZE)
    scores = warpgroup_mma_wait(1, deps=[scores])
    weights, m_i, l_i, alpha = weigh(block, scores, m_i, l_i, scoring, WINDOW, IS_MASKED)
    acc = warpgroup_mma_wait(0, deps=[acc])
    acc = acc * gl.expand_dims(gl.convert_layout(alpha, gl.SliceLayout(1, acc.type.layout)), 1)
    p = gl.convert_layout(weights.to(v_shared.dtype), p.type.layout)
    return p, acc, m_i, l_i, kv_row
