"""Paged attention of long prompts on Hopper GPUs (compute capability 9.0), in Gluon: one warpgroup loads, two attend.

A program holds a multiprocessor and takes work tiles of 128 rows one after the other. The warpgroup that loads runs
ahead into the next tile, so no tile waits for its pages, keys or queries. Each of the other two takes 64 rows of the
tile against the same keys and values, which halves what a row costs the L2 cache. The order of steps within them is
that of `punica_kernels.gpu.hopper_attention`; the roles are those of FlashAttention-3 (Shah et al., 2024).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from punica_kernels.gpu.attention_splits import Splits
from punica_kernels.gpu.hopper_blocks import HopperSizes, SharedBlocks
from punica_kernels.gpu.prompt_attender import ScaleAndCap, attend_first_half, attend_second_half
from punica_kernels.gpu.prompt_loader import PagedCache, load_tiles
from punica_kernels.gpu.prompt_work import Barriers, Work
from punica_kernels.gpu.work_tile import Heads


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
    sizes: gl.constexpr = HopperSizes(
        TILE_WORDS=TILE_WORDS,
        PAGE_SIZE=PAGE_SIZE,
        KV_HEADS=KV_HEADS,
        GROUP=GROUP,
        BLOCK_GROUP=BLOCK_GROUP,
        WINDOW=WINDOW,
    )
    dtype: gl.constexpr = q.dtype.element_ty
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    shared = SharedBlocks(
        q=gl.allocate_shared_memory(dtype, [2, 64, HEAD_DIM], SHARED),
        k=gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, HEAD_DIM], SHARED),
        v=gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, HEAD_DIM], SHARED),
    )
    # Loaded: each thread of the loader says so. Read: each attending warpgroup does.
    q_full, q_empty = _barriers(1, 128), _barriers(1, 2)
    k_full, k_empty = _barriers(STAGES, 128), _barriers(STAGES, 2)
    v_full, v_empty = _barriers(STAGES, 128), _barriers(STAGES, 2)
    barriers = Barriers(
        q_full=q_full,
        q_empty=q_empty,
        k_full=k_full,
        k_empty=k_empty,
        v_full=v_full,
        v_empty=v_empty,
    )
    work = Work(tiles=tiles, max_tiles=max_tiles)
    queries = Heads(first=q, row_stride=q_row_stride, head_stride=q_head_stride)
    cache = PagedCache(k=keys, v=values, pages=pages, page_rows=page_rows, slot_rows=slot_rows, head_rows=head_rows)
    target = Heads(first=out, row_stride=out_row_stride, head_stride=out_head_stride)
    splits = Splits(acc=split_acc, m_i=split_m, l_i=split_l, counts=counts)
    scale_and_cap = ScaleAndCap(scale=scale, log2_soft_cap=log2_soft_cap)
    gl.warp_specialize(
        [
            (load_tiles, (queries, cache, work, shared, barriers, sizes, PDL_TRIGGER, PDL_WAIT)),
            (attend_first_half, (target, splits, scale_and_cap, work, shared, barriers, sizes)),
            (attend_second_half, (target, splits, scale_and_cap, work, shared, barriers, sizes)),
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
