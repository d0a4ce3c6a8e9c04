"""Launch shapes of attention, as measured on Hopper GPUs (docs/performance.md), and which kernel serves which rows."""

from typing import NamedTuple

from torch import Tensor

from punica_kernels.attention_tiles import AttentionShape
from punica_kernels.integers import next_power_of_two
from punica_kernels.long_prompts import LONG_PROMPT_BLOCK_M, are_long_prompts, is_hopper

#: The smallest side of a tensor-core tile.
_MIN_BLOCK = 16
#: Bytes of keys in a block of tokens, and most tokens in it.
_BLOCK_BYTES, _MAX_BLOCK_N = 16384, 64
#: Most splits that are merged at a time, and most of their rows: their loads wait for memory together.
_MAX_MERGED_SPLITS, _MAX_MERGED_ROWS = 8, 64
#: A warpgroup, and its rows of a product.
_NUM_WARPS, _WARPGROUP_ROWS = 4, 64
#: Query heads of one kv head.
_MANY_SHARING_HEADS = 8


class TritonConfig(NamedTuple):
    """How a program of `_paged_attention` walks over its context."""

    #: Tokens of a block, and the stages of its pipeline.
    BLOCK_N: int
    STAGES: int
    #: Splits that are merged at a time.
    MERGED_SPLITS: int
    num_warps: int


def triton_config(shape: AttentionShape, head_dim: int, itemsize: int) -> TritonConfig:
    """The best that was measured (`punica-serve bench kernels --only paged-attention`)."""
    return TritonConfig(
        BLOCK_N=max(_MIN_BLOCK, min(_MAX_BLOCK_N, _BLOCK_BYTES // (block_d(head_dim) * itemsize))),
        STAGES=3,
        MERGED_SPLITS=max(1, min(_MAX_MERGED_SPLITS, 4 * shape.live_m, _MAX_MERGED_ROWS // shape.live_m)),
        num_warps=_NUM_WARPS * max(1, shape.block_m // _WARPGROUP_ROWS),
    )


def block_d(head_dim: int) -> int:
    """Columns of a tile of heads."""
    return max(_MIN_BLOCK, next_power_of_two(head_dim))


class HopperConfig(NamedTuple):
    """How a program of `hopper_attention` walks over its context."""

    #: Tokens of a block, and the blocks that are requested ahead.
    BLOCK_N: int
    DEPTH: int
    num_warps: int


def is_for_hopper(q: Tensor, keys: Tensor, values: Tensor, block_m: int) -> bool:
    """Whether `hopper_attention` serves these rows: whole warpgroups of them, in 16 bits, of heads that it knows, and
    keys and values that lie alike, in whole rows.
    """
    head_dim = q.shape[2]
    is_served = block_m >= _WARPGROUP_ROWS and head_dim in (64, 128) and q.element_size() == 2
    return is_served and _is_cache_of_rows(keys, values) and is_hopper(q.device)


def is_for_hopper_prompts(q: Tensor, keys: Tensor, values: Tensor, shape: AttentionShape) -> bool:
    """Whether `hopper_prompts` serves these rows: long prompts, in tiles of their own size.

    Raises ValueError unless keys and values lie as `hopper_attention` has them: no other kernel is made for such tiles.
    """
    is_long = are_long_prompts(shape.max_query_rows, q.shape[2], q.dtype, q.device)
    is_served = is_long and shape.block_m == LONG_PROMPT_BLOCK_M
    if is_served and not _is_cache_of_rows(keys, values):
        raise ValueError("keys and values of long prompts must lie alike, in whole rows of a head")
    return is_served


def _is_cache_of_rows(keys: Tensor, values: Tensor) -> bool:
    """Whether keys and values lie alike, in whole rows of a head."""
    return keys.stride() == values.stride() and not any(stride % keys.shape[3] for stride in keys.stride()[:3])


def hopper_config(shape: AttentionShape) -> HopperConfig:
    """The best that was measured (`punica-serve bench kernels --only paged-attention`)."""
    # Programs whose heads share their keys find them in the L2 cache.
    depth = 1 if shape.block_group >= _MANY_SHARING_HEADS else 2
    return HopperConfig(64, depth, _NUM_WARPS * shape.block_m // _WARPGROUP_ROWS)


class HopperPromptsConfig(NamedTuple):
    """How a program of `hopper_prompts` walks over the contexts of its tiles."""

    #: Tokens of a block, and the blocks of keys, and of values, in shared memory.
    BLOCK_N: int
    STAGES: int
    #: Registers of a thread that attends.
    REGISTERS: int
    #: Those of the warpgroup that loads.
    num_warps: int = _NUM_WARPS


def hopper_prompts_config(head_dim: int) -> HopperPromptsConfig:
    """The largest that shared memory holds, which was the best measured (docs/notes/performance.md)."""
    if head_dim == 128:
        return HopperPromptsConfig(BLOCK_N=128, STAGES=3, REGISTERS=216)
    return HopperPromptsConfig(BLOCK_N=64, STAGES=2, REGISTERS=224)
