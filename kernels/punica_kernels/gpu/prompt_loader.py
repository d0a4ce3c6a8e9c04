"""The warpgroup of `hopper_prompts` that loads: queries, keys and values of the program's tiles, ahead of their use."""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from punica_kernels.gpu.hopper_blocks import Context, copy_block, kv_rows
from punica_kernels.gpu.prompt_work import load_tile


class PagedCache(NamedTuple):
    """A layer's keys and values, and all page numbers of the step. Strides are in rows of HEAD_DIM numbers."""

    k: gl.tensor
    v: gl.tensor
    pages: gl.tensor
    page_rows: gl.tensor
    slot_rows: gl.tensor
    head_rows: gl.tensor


@gluon.jit
def load_tiles(
    queries,
    cache,
    work,
    shared,
    barriers,
    sizes: gl.constexpr,
    PDL_TRIGGER: gl.constexpr,
    PDL_WAIT: gl.constexpr,
):
    """Loads the queries, keys and values of all of the program's tiles, as places become free."""
    BLOCK_N: gl.constexpr = shared.k.shape[1]
    HEAD_DIM: gl.constexpr = shared.k.shape[2]
    # 16 bytes a thread.
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // HEAD_DIM, HEAD_DIM // 8], [gl.num_warps(), 1], [1, 0])
    offs_n = gl.arange(0, BLOCK_N, gl.SliceLayout(1, LAYOUT))
    offs_d = gl.expand_dims(gl.arange(0, HEAD_DIM, gl.SliceLayout(0, LAYOUT)), 0)
    keys, values = cache.k + offs_d, cache.v + offs_d
    turn = 0
    loaded = 0
    tile = load_tile(turn, work, sizes)
    if PDL_WAIT:
        gdc_wait()
    if PDL_TRIGGER:
        gdc_launch_dependents()
    while tile.first_row >= 0:
        context = Context(
            k=keys,
            v=values,
            pages=cache.pages + tile.first_page,
            offs_n=offs_n,
            num_tokens=tile.num_tokens,
            page_rows=cache.page_rows,
            slot_rows=cache.slot_rows,
            head_row=tile.kv_head * cache.head_rows,
        )
        mbarrier.wait(barriers.q_empty.index(0), turn % 2 ^ 1)
        _copy_queries(tile, queries, shared.q, offs_d, sizes, LAYOUT)
        async_copy.mbarrier_arrive(barriers.q_full.index(0), increment_count=False)
        num_blocks = gl.cdiv(tile.num_tokens, BLOCK_N)
        for block in range(num_blocks):
            kv_row = kv_rows(block, context, BLOCK_N, sizes)
            _copy_when_empty(loaded + block, keys, kv_row, shared.k, barriers.k_full, barriers.k_empty)
            _copy_when_empty(loaded + block, values, kv_row, shared.v, barriers.v_full, barriers.v_empty)
        loaded += num_blocks
        turn += 1
        tile = load_tile(turn, work, sizes)


@gluon.jit
def _copy_when_empty(number, pool, kv_row, places, full, empty):
    """Requests the program's numberth block of keys or values, once the block before it in its place was read."""
    STAGES: gl.constexpr = places.shape[0]
    stage = number % STAGES
    mbarrier.wait(empty.index(stage), (number // STAGES) % 2 ^ 1)
    copy_block(places.index(stage), pool, kv_row, places.shape[2])
    async_copy.mbarrier_arrive(full.index(stage), increment_count=False)


@gluon.jit
def _copy_queries(tile, queries, q_shared, offs_d, sizes: gl.constexpr, LAYOUT: gl.constexpr):
    """Requests a tile's queries. Rows that there are not get those of others: nobody stores their results."""
    for half in gl.static_range(2):
        offs_m = half * 64 + gl.arange(0, 64, gl.SliceLayout(1, LAYOUT))
        query = gl.minimum(offs_m // sizes.BLOCK_GROUP, tile.num_rows - 1)
        member = gl.minimum(offs_m % sizes.BLOCK_GROUP, sizes.GROUP - 1)
        row = (tile.first_row + query).to(gl.int64) * queries.row_stride
        row += (tile.kv_head * sizes.GROUP + member) * queries.head_stride
        async_copy.async_copy_global_to_shared(q_shared.index(half), queries.first + gl.expand_dims(row, 1) + offs_d)
