"""The warpgroups of `hopper_prompts` that attend, each with one half of a tile's rows, as `hopper_attention` does."""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from punica_kernels.gpu.attention_constants import MIN_SCORE, NUM_SPLITS
from punica_kernels.gpu.hopper_blocks import Scoring, weigh
from punica_kernels.gpu.hopper_splits import HopperTile, write_rows
from punica_kernels.gpu.online_softmax import Sums
from punica_kernels.gpu.prompt_work import load_tile, tile_place


class ScaleAndCap(NamedTuple):
    """The factor of scores, and their soft cap."""

    scale: gl.tensor
    log2_soft_cap: gl.tensor | None


class Walk(NamedTuple):
    """The state between two blocks."""

    #: The newest block's weights.
    p: gl.tensor
    #: The weighted values of the blocks before it.
    acc: gl.tensor
    #: The highest scores, and the sums of weights, of all blocks so far.
    m_i: gl.tensor
    l_i: gl.tensor


@gluon.jit
def attend_first_half(target, splits, scale_and_cap, work, shared, barriers, sizes: gl.constexpr):
    """Attends with the first half of each tile's rows."""
    _attend_half(0, target, splits, scale_and_cap, work, shared, barriers, sizes)


@gluon.jit
def attend_second_half(target, splits, scale_and_cap, work, shared, barriers, sizes: gl.constexpr):
    """Attends with the second half of each tile's rows."""
    _attend_half(1, target, splits, scale_and_cap, work, shared, barriers, sizes)


@gluon.jit
def _attend_half(HALF: gl.constexpr, target, splits, scale_and_cap, work, shared, barriers, sizes: gl.constexpr):
    """Attends with 64 rows of each of the program's tiles, and writes their results."""
    BLOCK_N: gl.constexpr = shared.k.shape[1]
    HEAD_DIM: gl.constexpr = shared.k.shape[2]
    MERGE_LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // HEAD_DIM, HEAD_DIM // 8], [gl.num_warps(), 1], [1, 0])
    turn = 0
    read = 0
    tile = load_tile(turn, work, sizes)
    while tile.first_row >= 0:
        next_tile = load_tile(turn + 1, work, sizes)
        mbarrier.wait(barriers.q_full.index(0), turn % 2)
        sums = _attend_tile(HALF, read, tile, scale_and_cap, shared, barriers, sizes)
        read += gl.cdiv(tile.num_tokens, BLOCK_N)
        words = tile_place(turn, work, sizes)[0]
        attended = HopperTile(
            words=words,
            kv_head=tile.kv_head,
            first_row=tile.first_row,
            num_rows=tile.num_rows,
            num_tokens=tile.num_tokens,
            last_visible=tile.last_visible,
            num_splits=gl.load(words + NUM_SPLITS),
        )
        write_rows(HALF, 2, attended, sums, target, splits, sizes, MERGE_LAYOUT)
        tile = next_tile
        turn += 1


@gluon.jit
def _attend_tile(HALF: gl.constexpr, read, tile, scale_and_cap, shared, barriers, sizes: gl.constexpr):
    """The sums of 64 rows over all tokens that they see. `read`: the number of the tile's first block."""
    num_tokens = tile.num_tokens
    BLOCK_N: gl.constexpr = shared.k.shape[1]
    HEAD_DIM: gl.constexpr = shared.k.shape[2]
    STAGES: gl.constexpr = shared.k.shape[0]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BLOCK_N, 16])
    ACC_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, HEAD_DIM, 16])
    S_ROWS: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)

    # Unused rows see what the last one sees: something, so that nothing is divided by zero.
    query = gl.minimum((HALF * 64 + gl.arange(0, 64, S_ROWS)) // sizes.BLOCK_GROUP, tile.num_rows - 1)
    last_visible = tile.last_visible + query
    scoring = Scoring(
        scale=scale_and_cap.scale,
        log2_soft_cap=scale_and_cap.log2_soft_cap,
        last=gl.minimum(last_visible, num_tokens - 1),
        last_visible=last_visible,
    )
    m_i = gl.full([64], MIN_SCORE, gl.float32, S_ROWS)
    l_i = gl.zeros([64], gl.float32, S_ROWS)
    acc = gl.zeros([64, HEAD_DIM], gl.float32, ACC_LAYOUT)
    fence_async_shared()
    scores = _start_scores(HALF, read, shared, barriers.k_full, S_LAYOUT)
    scores = warpgroup_mma_wait(0, deps=[scores])
    mbarrier.arrive(barriers.k_empty.index(read % STAGES), count=1)
    weights, m_i, l_i, _ = weigh(0, scores, m_i, l_i, scoring, sizes.WINDOW, True)
    p = gl.convert_layout(weights.to(shared.v.dtype), gl.DotOperandLayout(0, ACC_LAYOUT, 2))

    first_full, end_full, num_blocks = _full_blocks(HALF, tile, BLOCK_N, sizes)
    walk = Walk(p=p, acc=acc, m_i=m_i, l_i=l_i)
    if sizes.WINDOW:
        for block in range(1, first_full):
            walk = _step(HALF, read, block, walk, shared, barriers, scoring, S_LAYOUT, sizes, True)
    for block in range(first_full, end_full):
        walk = _step(HALF, read, block, walk, shared, barriers, scoring, S_LAYOUT, sizes, False)
    for block in range(end_full, num_blocks):
        walk = _step(HALF, read, block, walk, shared, barriers, scoring, S_LAYOUT, sizes, True)
    mbarrier.arrive(barriers.q_empty.index(0), count=1)
    acc = _start_values(read + num_blocks - 1, walk.p, walk.acc, shared.v, barriers.v_full)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(barriers.v_empty.index((read + num_blocks - 1) % STAGES), count=1)
    return Sums(m_i=walk.m_i, l_i=walk.l_i, acc=acc)


@gluon.jit
def _full_blocks(HALF: gl.constexpr, tile, BLOCK_N: gl.constexpr, sizes: gl.constexpr):
    """(first, end) of the blocks, behind the first one, that all of the rows see in full; and the number of blocks."""
    first_query = gl.minimum(HALF * 64 // sizes.BLOCK_GROUP, tile.num_rows - 1)
    last_query = gl.minimum((HALF * 64 + 63) // sizes.BLOCK_GROUP, tile.num_rows - 1)
    num_blocks = gl.cdiv(tile.num_tokens, BLOCK_N)
    first_full = 1
    if sizes.WINDOW:
        num_hidden = tile.last_visible + last_query + 1 - sizes.WINDOW
        first_full = gl.minimum(gl.maximum(gl.cdiv(num_hidden, BLOCK_N), 1), num_blocks)
    num_seen_by_all = gl.minimum(tile.last_visible + first_query + 1, tile.num_tokens)
    return first_full, gl.maximum(num_seen_by_all // BLOCK_N, first_full), num_blocks


@gluon.jit
def _step(
    HALF: gl.constexpr,
    read,
    block,
    walk,
    shared,
    barriers,
    scoring,
    S_LAYOUT: gl.constexpr,
    sizes: gl.constexpr,
    IS_MASKED: gl.constexpr,
):
    """The weights of `block`, beside the product of the weights and the values of the block before it."""
    STAGES: gl.constexpr = shared.v.shape[0]
    number = read + block
    scores = _start_scores(HALF, number, shared, barriers.k_full, S_LAYOUT)
    acc = _start_values(number - 1, walk.p, walk.acc, shared.v, barriers.v_full)
    scores = warpgroup_mma_wait(1, deps=[scores])
    mbarrier.arrive(barriers.k_empty.index(number % STAGES), count=1)
    weights, m_i, l_i, alpha = weigh(block, scores, walk.m_i, walk.l_i, scoring, sizes.WINDOW, IS_MASKED)
    p = gl.convert_layout(weights.to(shared.v.dtype), walk.p.type.layout)
    # These values are there already. Without a branch here the assembler would await the product before the softmax.
    mbarrier.wait(barriers.v_full.index((number - 1) % STAGES), ((number - 1) // STAGES) % 2)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(barriers.v_empty.index((number - 1) % STAGES), count=1)
    acc = acc * gl.expand_dims(gl.convert_layout(alpha, gl.SliceLayout(1, acc.type.layout)), 1)
    return Walk(p=p, acc=acc, m_i=m_i, l_i=l_i)


@gluon.jit
def _start_scores(HALF: gl.constexpr, number, shared, k_full, S_LAYOUT: gl.constexpr):
    """Starts the product of the half's queries and the numberth block's keys, once these are there."""
    STAGES: gl.constexpr = shared.k.shape[0]
    mbarrier.wait(k_full.index(number % STAGES), (number // STAGES) % 2)
    fence_async_shared()
    keys = shared.k.index(number % STAGES).permute((1, 0))
    zeros = gl.full([64, shared.k.shape[1]], 0.0, gl.float32, S_LAYOUT)
    return warpgroup_mma(shared.q.index(HALF), keys, zeros, use_acc=False, is_async=True)


@gluon.jit
def _start_values(number, p, acc, v_shared, v_full):
    """Starts the product of weights and the numberth block's values, once these are there."""
    STAGES: gl.constexpr = v_shared.shape[0]
    mbarrier.wait(v_full.index(number % STAGES), (number // STAGES) % 2)
    fence_async_shared()
    return warpgroup_mma(p, v_shared.index(number % STAGES), acc, is_async=True)
