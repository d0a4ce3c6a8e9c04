"""Launch shapes of the SGMV kernels, from a table's shape and a group's widths alone: a CUDA graph holds them.

Measured on an H200 (docs/performance.md). A few rows need many programs for each, to have enough bytes in flight; many
rows need larger ones, which cost less to start.
"""

from dataclasses import dataclass
from functools import cache

from punica_kernels.lora_table import LoraTableShape


@dataclass(frozen=True, slots=True)
class ShrinkConfig:
    """How the shrink of one group is cut."""

    #: Parts of h_in; each writes its own partial sums.
    splits: int
    #: Elements of h_in in a split, whole blocks.
    split_k: int
    #: Elements of h_in that a program multiplies at a time.
    block_k: int
    #: Programs along the items; each takes every so many-th item.
    item_programs: int
    num_warps: int


@dataclass(frozen=True, slots=True)
class ExpandConfig:
    """How the expand of one group is cut."""

    #: Partial sums to add up: those of the shrink.
    splits: int
    #: Outputs of a program.
    block_n: int
    #: Outputs that a program takes at a time for a tile of several rows.
    tile_n: int
    num_warps: int
    #: Of a thread. The compiler would take more to no use, and fewer programs would run at a time.
    max_registers: int


def num_splits(shape: LoraTableShape, num_slices: int) -> int:
    """Parts of h_in, a power of two: the fewer tiles, the more. A split past a small h_in sums to zero."""
    return 16 if shape.max_tiles * num_slices <= 16 else 8


@cache
def shrink_config(shape: LoraTableShape, h_in: int, num_slices: int) -> ShrinkConfig:
    """The shrink of a group of `num_slices` stacked projections with `h_in` inputs."""
    splits = num_splits(shape, num_slices)
    block_k = min(512, max(16, _next_power_of_two(_ceil_div(h_in, splits))))
    return ShrinkConfig(
        splits=splits,
        split_k=_ceil_div(_ceil_div(h_in, block_k), splits) * block_k,
        block_k=block_k,
        item_programs=shape.max_tiles * (2 if shape.max_tile_items > 1 and shape.max_tiles <= 32 else 1),
        num_warps=max(1, block_k // 128),
    )


@cache
def expand_config(shape: LoraTableShape, num_slices: int, widest_slice: int) -> ExpandConfig:
    """The expand of a group of so many projections, of which the widest has so many outputs."""
    block_n = min(128, max(16, _next_power_of_two(widest_slice)))
    return ExpandConfig(
        splits=num_splits(shape, num_slices), block_n=block_n, tile_n=block_n, num_warps=1, max_registers=168
    )


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _next_power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
