"""Launch shapes of the shrink of long prompts, from a table's shape and a group's widths alone."""

from dataclasses import dataclass
from functools import cache

from punica_kernels.integers import ceil_div, next_power_of_two
from punica_kernels.lora_table import BLOCK_RANKS, LoraTableShape

# At least so many programs share a prompt's shrink: half of an H200's multiprocessors.
_PROMPT_PROGRAMS = 64
# Fewer splits are slower even where tiles alone are as many programs.
_LEAST_SPLITS = 4
# From so many tiles on there are programs enough without splits.
_MANY_TILES = 96


@dataclass(frozen=True, slots=True)
class PromptShrinkConfig:
    """Launch configuration of the shrink of one group for a table of long prompts."""

    #: Splits of h_in, whose partial sums the last program adds up.
    split_k: int
    #: Elements of h_in in a split: whole blocks.
    k_per_split: int
    #: Elements of h_in that a program multiplies at a time.
    block_k: int
    #: Ranks of all slices, up to a power of two.
    columns: int
    num_stages: int
    num_warps: int


def prompt_splits(shape: LoraTableShape) -> int:
    """Splits of h_in, a power of two: the fewer tiles, the more. A split past a small h_in sums to zero."""
    num_tiles = ceil_div(shape.max_rows, shape.tile_rows)
    if num_tiles >= _MANY_TILES:
        return 1
    return max(_LEAST_SPLITS, next_power_of_two(ceil_div(_PROMPT_PROGRAMS, num_tiles)))


@cache
def prompt_shrink_config(shape: LoraTableShape, h_in: int, num_slices: int, itemsize: int) -> PromptShrinkConfig:
    """The shrink of a group of `num_slices` projections with `h_in` inputs, for a table of long prompts.

    `itemsize`: bytes of an input.
    """
    split_k = prompt_splits(shape)
    # 256 bytes of each row, so that the stages of two programs fit the shared memory of a multiprocessor.
    block_k = min(256 // itemsize, max(16, next_power_of_two(ceil_div(h_in, split_k))))
    return PromptShrinkConfig(
        split_k=split_k,
        k_per_split=ceil_div(ceil_div(h_in, block_k), split_k) * block_k,
        block_k=block_k,
        columns=next_power_of_two(num_slices * BLOCK_RANKS),
        num_stages=3,
        num_warps=4,
    )
