"""Paged attention of long prompts on Hopper GPUs (compute capability 9.0), in Gluon: one warpgroup loads, two attend.

A program holds a multiprocessor and takes work tiles of 128 rows one after the other. The warpgroup that loads runs
ahead into the next tile, so no tile waits for its pages, keys or queries. Each of the other two takes 64 rows of the
tile against the same keys and values, which halves what a row costs the L2 cache. The order of steps within them is
that of `punica_kernels.gpu.hopper_attention`; the roles are those of FlashAttention-3 (Shah et al., 2024).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
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
from punica_kernels.gpu.hopper_splits import write_rows


@gluon.jit(do_not_specialize=["max_tiles"])
def hopper_prompts(
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
    max_tiles,
    TILE_WORDS: gl.constexpr,
    HEAD_DIM: gl.constexpr,
    PAGE_SIZE: gl.constexpr,
    KV_HEADS: gl.constexpr,
    GROUP: gl.constexpr,
    BLOCK_GROUP: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    WINDOW: gl.constexpr,
    REGISTERS: gl.constexpr,
    PDL_TRIGGER: gl.constexpr,
    PDL_WAIT: gl.constexpr,
):
    """Programs share the pairs of work tile and kv head. STAGES blocks of keys and of values are in shared memory."""
    dtype: gl.constexpr = q.dtype.element_ty
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    q_shared = gl.allocate_shared_memory(dtype, [2, 64, HEAD_DIM], SHARED)
    k_shared = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, HEAD_DIM], SHARED)
    v_shared = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, HEAD_DIM], SHARED)
    # Loaded: each thread of the loader says so. Read: each attending warpgroup does.
    q_full, q_empty = _barriers(1, 128), _barriers(1, 2)
    k_full, k_empty = _barriers(STAGES, 128), _barriers(STAGES, 2)
    v_full, v_empty = _barriers(STAGES, 128), _barriers(STAGES, 2)

    shared = (q_shared, k_shared, v_shared)
    barriers = (q_full, q_empty, k_full, k_empty, v_full, v_empty)
    work = (tiles, max_tiles)
    cache = (keys, values, pages, page_rows, slot_rows, head_rows)
    rows = (q, q_row_stride, q_head_stride)
    target = (out, out_row_stride, out_head_stride)
    splits = (split_acc, split_m, split_l, counts)
    scores = (scale, log2_soft_cap)
    SIZES: gl.constexpr = (TILE_WORDS, KV_HEADS, GROUP, BLOCK_GROUP, PAGE_SIZE, WINDOW)
    gl.warp_specialize(
        [
            (_load, (rows, cache, work, shared, barriers, SIZES, PDL_TRIGGER, PDL_WAIT)),
            (_attend_first, (target, splits, scores, work, shared, barriers, SIZES)),
            (_attend_second, (target, splits, scores, work, shared, barriers, SIZES)),
        ],
        [4, 4],
        [REGISTERS, REGISTERS],
    )


@gluon.jit
def _barriers(NUMBER: gl.constexpr, COUNT: gl.constexpr):
    """Barriers whose phase ends with COUNT arrivals."""
    barriers = gl.allocate_shared_memory(gl.int64, [NUMBER, 1], mbarrier.MBarrierLayout())
    for number in gl.static_range(NUMBER):
        mbarrier.init(barriers.index(number), count=COUNT)
    return barriers


@gluon.jit
def _place(turn, work, SIZES: gl.constexpr):
    """The program's work in this turn: where the words of its tile lie, whether there is one, and the kv head.

    Programs take the longest tiles first, and every second time in reverse, so that all have about the same work.
    """
    tiles, max_tiles = work
    TILE_WORDS: gl.constexpr = SIZES[0]
    KV_HEADS: gl.constexpr = SIZES[1]
    program = gl.program_id(0)
    number = turn * gl.num_programs(0) + gl.where(turn % 2 == 0, program, gl.num_programs(0) - 1 - program)
    return tiles + (number // KV_HEADS) * TILE_WORDS, number // KV_HEADS < max_tiles, number % KV_HEADS


@gluon.jit
def _tile(turn, work, SIZES: gl.constexpr):
    """The kv head and the words of the turn's tile. The first row is -1 past the last one."""
    words, is_tile, kv_head = _place(turn, work, SIZES)
    first_row = gl.load(words + FIRST_ROW, mask=is_tile, other=-1)
    num_rows = gl.load(words + NUM_ROWS, mask=is_tile, other=0)
    first_page = gl.load(words + FIRST_PAGE, mask=is_tile, other=0)
    num_tokens = gl.load(words + NUM_TOKENS, mask=is_tile, other=0)
    last_visible = gl.load(words + LAST_VISIBLE, mask=is_tile, other=0)
    return first_row, kv_head, num_rows, first_page, num_tokens, last_visible


@gluon.jit
def _load(rows, cache, work, shared, barriers, SIZES: gl.constexpr, PDL_TRIGGER: gl.constexpr, PDL_WAIT: gl.constexpr):
    """Brings the queries, keys and values of all of the program's tiles, as places become free."""
    q_shared, k_shared, v_shared = shared
    q_full, q_empty, k_full, k_empty, v_full, v_empty = barriers
    keys, values, pages, page_rows, slot_rows, head_rows = cache
    PAGE_SIZE: gl.constexpr = SIZES[4]
    BLOCK_N: gl.constexpr = k_shared.shape[1]
    HEAD_DIM: gl.constexpr = k_shared.shape[2]
    # 16 bytes a thread.
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // HEAD_DIM, HEAD_DIM // 8], [gl.num_warps(), 1], [1, 0])
    offs_n = gl.arange(0, BLOCK_N, gl.SliceLayout(1, LAYOUT))
    offs_d = gl.expand_dims(gl.arange(0, HEAD_DIM, gl.SliceLayout(0, LAYOUT)), 0)
    k_pool, v_pool = keys + offs_d, values + offs_d
    turn = 0
    loaded = 0
    first_row, kv_head, num_rows, first_page, num_tokens, _ = _tile(turn, work, SIZES)
    if PDL_WAIT:
        gdc_wait()
    if PDL_TRIGGER:
        gdc_launch_dependents()
    while first_row >= 0:
        own_pages, head_row = pages + first_page, kv_head * head_rows
        own = (k_pool, v_pool, own_pages, offs_n, num_tokens, page_rows, slot_rows, head_row)
        mbarrier.wait(q_empty.index(0), turn % 2 ^ 1)
        _copy_queries(first_row, kv_head, num_rows, rows, q_shared, offs_d, SIZES, LAYOUT)
        async_copy.mbarrier_arrive(q_full.index(0), increment_count=False)
        num_blocks = gl.cdiv(num_tokens, BLOCK_N)
        for block in range(num_blocks):
            kv_row = kv_rows(block, own, BLOCK_N, PAGE_SIZE)
            _bring(loaded + block, k_pool, kv_row, k_shared, k_full, k_empty)
            _bring(loaded + block, v_pool, kv_row, v_shared, v_full, v_empty)
        loaded += num_blocks
        turn += 1
        first_row, kv_head, num_rows, first_page, num_tokens, _ = _tile(turn, work, SIZES)


@gluon.jit
def _bring(number, pool, kv_row, places, full, empty):
    """Requests the program's numberth block of keys or values, once the block before it in its place was read."""
    STAGES: gl.constexpr = places.shape[0]
    stage = number % STAGES
    mbarrier.wait(empty.index(stage), (number // STAGES) % 2 ^ 1)
    copy_block(places.index(stage), pool, kv_row, places.shape[2])
    async_copy.mbarrier_arrive(full.index(stage), increment_count=False)


@gluon.jit
def _copy_queries(first_row, kv_head, num_rows, rows, q_shared, offs_d, SIZES: gl.constexpr, LAYOUT: gl.constexpr):
    """Requests a tile's queries. Rows that there are not get those of others: nobody stores their results."""
    q, q_row_stride, q_head_stride = rows
    GROUP: gl.constexpr = SIZES[2]
    BLOCK_GROUP: gl.constexpr = SIZES[3]
    for half in gl.static_range(2):
        offs_m = half * 64 + gl.arange(0, 64, gl.SliceLayout(1, LAYOUT))
        query = gl.minimum(offs_m // BLOCK_GROUP, num_rows - 1)
        member = gl.minimum(offs_m % BLOCK_GROUP, GROUP - 1)
        row = (first_row + query).to(gl.int64) * q_row_stride + (kv_head * GROUP + member) * q_head_stride
        async_copy.async_copy_global_to_shared(q_shared.index(half), q + gl.expand_dims(row, 1) + offs_d)


@gluon.jit
def _attend_first(target, splits, scores, work, shared, barriers, SIZES: gl.constexpr):
    """The first half of each tile's rows."""
    _attend_half(0, target, splits, scores, work, shared, barriers, SIZES)


@gluon.jit
def _attend_second(target, splits, scores, work, shared, barriers, SIZES: gl.constexpr):
    """The second half of each tile's rows."""
    _attend_half(1, target, splits, scores, work, shared, barriers, SIZES)


@gluon.jit
def _attend_half(HALF: gl.constexpr, target, splits, scores, work, shared, barriers, SIZES: gl.constexpr):
    """Attends with 64 rows of each of the program's tiles, and writes their results."""
    q_full = barriers[0]
    KV_HEADS: gl.constexpr = SIZES[1]
    GROUP: gl.constexpr = SIZES[2]
    BLOCK_GROUP: gl.constexpr = SIZES[3]
    BLOCK_N: gl.constexpr = shared[1].shape[1]
    HEAD_DIM: gl.constexpr = shared[1].shape[2]
    MERGE_LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // HEAD_DIM, HEAD_DIM // 8], [gl.num_warps(), 1], [1, 0])
    turn = 0
    read = 0
    first_row, kv_head, num_rows, _, num_tokens, last_visible = _tile(turn, work, SIZES)
    while first_row >= 0:
        next_tile = _tile(turn + 1, work, SIZES)
        mbarrier.wait(q_full.index(0), turn % 2)
        seen = (num_rows, num_tokens, last_visible)
        sums = _attend_tile(HALF, read, seen, scores, shared, barriers, SIZES)
        read += gl.cdiv(num_tokens, BLOCK_N)
        words = _place(turn, work, SIZES)[0]
        tile = (words, first_row, kv_head, num_rows, gl.load(words + NUM_SPLITS))
        write_rows(HALF, 2, tile, sums, target, splits, KV_HEADS, GROUP, BLOCK_GROUP, MERGE_LAYOUT)
        first_row, kv_head, num_rows, _, num_tokens, last_visible = next_tile
        turn += 1


@gluon.jit
def _attend_tile(HALF: gl.constexpr, read, seen, how, shared, barriers, SIZES: gl.constexpr):
    """As `hopper_attention` has it: weighted values, highest scores and sums of weights of 64 rows."""
    num_rows, num_tokens, first_row_last_visible = seen
    scale, log2_soft_cap = how
    _, k_shared, v_shared = shared
    _, q_empty, k_full, k_empty, v_full, v_empty = barriers
    BLOCK_GROUP: gl.constexpr = SIZES[3]
    WINDOW: gl.constexpr = SIZES[5]
    BLOCK_N: gl.constexpr = k_shared.shape[1]
    HEAD_DIM: gl.constexpr = k_shared.shape[2]
    STAGES: gl.constexpr = k_shared.shape[0]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BLOCK_N, 16])
    ACC_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, HEAD_DIM, 16])
    S_ROWS: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)

    # Unused rows see what the last one sees: something, so that nothing is divided by zero.
    query = gl.minimum((HALF * 64 + gl.arange(0, 64, S_ROWS)) // BLOCK_GROUP, num_rows - 1)
    last_visible = first_row_last_visible + query
    scoring = (scale, log2_soft_cap, gl.minimum(last_visible, num_tokens - 1), last_visible)
    m_i = gl.full([64], MIN_SCORE, gl.float32, S_ROWS)
    l_i = gl.zeros([64], gl.float32, S_ROWS)
    acc = gl.zeros([64, HEAD_DIM], gl.float32, ACC_LAYOUT)
    fence_async_shared()
    scores = _start_scores(HALF, read, shared, k_full, S_LAYOUT)
    scores = warpgroup_mma_wait(0, deps=[scores])
    mbarrier.arrive(k_empty.index(read % STAGES), count=1)
    weights, m_i, l_i, _ = weigh(0, scores, m_i, l_i, scoring, WINDOW, True)
    p = gl.convert_layout(weights.to(v_shared.dtype), gl.DotOperandLayout(0, ACC_LAYOUT, 2))

    # All of the rows see all tokens of the blocks from `first_full` to `end_full`.
    first_query = gl.minimum(HALF * 64 // BLOCK_GROUP, num_rows - 1)
    last_query = gl.minimum((HALF * 64 + 63) // BLOCK_GROUP, num_rows - 1)
    num_blocks = gl.cdiv(num_tokens, BLOCK_N)
    first_full = 1
    if WINDOW:
        num_hidden = first_row_last_visible + last_query + 1 - WINDOW
        first_full = gl.minimum(gl.maximum(gl.cdiv(num_hidden, BLOCK_N), 1), num_blocks)
    end_full = gl.maximum(gl.minimum(first_row_last_visible + first_query + 1, num_tokens) // BLOCK_N, first_full)
    sums = (p, acc, m_i, l_i)
    if WINDOW:
        for block in range(1, first_full):
            sums = _step(HALF, read, block, sums, shared, barriers, scoring, S_LAYOUT, WINDOW, True)
    for block in range(first_full, end_full):
        sums = _step(HALF, read, block, sums, shared, barriers, scoring, S_LAYOUT, WINDOW, False)
    for block in range(end_full, num_blocks):
        sums = _step(HALF, read, block, sums, shared, barriers, scoring, S_LAYOUT, WINDOW, True)
    p, acc, m_i, l_i = sums
    mbarrier.arrive(q_empty.index(0), count=1)
    acc = _start_values(read + num_blocks - 1, p, acc, v_shared, v_full)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(v_empty.index((read + num_blocks - 1) % STAGES), count=1)
    return acc, m_i, l_i


@gluon.jit
def _step(
    HALF: gl.constexpr,
    read,
    block,
    sums,
    shared,
    barriers,
    scoring,
    S_LAYOUT: gl.constexpr,
    WINDOW: gl.constexpr,
    IS_MASKED: gl.constexpr,
):
    """The weights of `block`, beside the product of the weights and the values of the block before it."""
    p, acc, m_i, l_i = sums
    _, _, v_shared = shared
    _, _, k_full, k_empty, v_full, v_empty = barriers
    STAGES: gl.constexpr = v_shared.shape[0]
    number = read + block
    scores = _start_scores(HALF, number, shared, k_full, S_LAYOUT)
    acc = _start_values(number - 1, p, acc, v_shared, v_full)
    scores = warpgroup_mma_wait(1, deps=[scores])
    mbarrier.arrive(k_empty.index(number % STAGES), count=1)
    weights, m_i, l_i, alpha = weigh(block, scores, m_i, l_i, scoring, WINDOW, IS_MASKED)
    p_next = gl.convert_layout(weights.to(v_shared.dtype), p.type.layout)
    # These values are there already. Without a branch here the assembler would await the product before the softmax.
    mbarrier.wait(v_full.index((number - 1) % STAGES), ((number - 1) // STAGES) % 2)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(v_empty.index((number - 1) % STAGES), count=1)
    acc = acc * gl.expand_dims(gl.convert_layout(alpha, gl.SliceLayout(1, acc.type.layout)), 1)
    return p_next, acc, m_i, l_i


@gluon.jit
def _start_scores(HALF: gl.constexpr, number, shared, k_full, S_LAYOUT: gl.constexpr):
    """Starts the product of the half's queries and the numberth block's keys, once these are there."""
    q_shared, k_shared, _ = shared
    STAGES: gl.constexpr = k_shared.shape[0]
    mbarrier.wait(k_full.index(number % STAGES), (number // STAGES) % 2)
    fence_async_shared()
    keys = k_shared.index(number % STAGES).permute((1, 0))
    zeros = gl.full([64, k_shared.shape[1]], 0.0, gl.float32, S_LAYOUT)
    return warpgroup_mma(q_shared.index(HALF), keys, zeros, use_acc=False, is_async=True)


@gluon.jit
def _start_values(number, p, acc, v_shared, v_full):
    """Starts the product of weights and the numberth block's values, once these are there."""
    STAGES: gl.constexpr = v_shared.shape[0]
    mbarrier.wait(v_full.index(number % STAGES), (number // STAGES) % 2)
    fence_async_shared()
    return warpgroup_mma(p, v_shared.index(number % STAGES), acc, is_async=True)
