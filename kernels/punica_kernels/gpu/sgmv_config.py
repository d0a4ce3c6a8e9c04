"""Launch shapes of the SGMV kernels, from a table's shape and a group's widths alone: a CUDA graph holds them.

Measured on an H200 (docs/performance.md). A few rows need many programs for each, to have enough bytes in flight; many
rows need larger ones, which cost less to start.
"""

from dataclasses import dataclass
from functools import cache

from punica_kernels.lora_table import MAX_COLUMN_PARTS, LoraTableShape


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


# Tiles of the largest table of a decode; a table of more holds prefills, whose tiles are many without splits.
_DECODE_TILES = 64


def num_splits(shape: LoraTableShape, num_slices: int) -> int:
    """Parts of h_in, a power of two: the fewer tiles, the more. A split past a small h_in sums to zero."""
    if shape.max_tiles * num_slices <= 16:
        return 16
    return 8 if shape.max_tiles <= _DECODE_TILES else 4


@cache
def shrink_config(shape: LoraTableShape, h_in: int, num_slices: int) -> ShrinkConfig:
    """The shrink of a group of `num_slices` stacked projections with `h_in` inputs."""
    splits = num_splits(shape, num_slices)
    few = shape.max_tiles <= _DECODE_TILES // 2
    block_k = min(256 if few else 512, max(16, _next_power_of_two(_ceil_div(h_in, splits))))
    return ShrinkConfig(
        splits=splits,
        split_k=_ceil_div(_ceil_div(h_in, block_k), splits) * block_k,
        block_k=block_k,
        # A few tiles of high ranks leave room for more programs than tiles.
        item_programs=shape.max_tiles * (2 if few and shape.max_tile_items > 1 else 1),
        num_warps=min(4, max(1, block_k // 64)),
    )


@cache
def expand_config(shape: LoraTableShape, num_slices: int, widest_slice: int) -> ExpandConfig:
    """The expand of a group of so many projections, of which the widest has so many outputs."""
    block_n = min(128, max(16, _next_power_of_two(widest_slice)))
    decode = shape.max_tiles <= _DECODE_TILES
    return ExpandConfig(
        splits=num_splits(shape, num_slices),
        block_n=block_n,
        tile_n=max(16, block_n // MAX_COLUMN_PARTS) if decode else block_n,
        num_warps=1,
        # More are a gain for rows of several items, and a loss where so many programs are wanted at a time.
        max_registers=128 if _DECODE_TILES // 2 < shape.max_tiles <= _DECODE_TILES else 168,
    )


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _next_power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
