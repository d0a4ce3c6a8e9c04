"""Launch shapes of the SGMV kernels, from a table's shape and a group's widths alone: a CUDA graph holds them.

Measured on an H200 (docs/performance.md). A few rows need many programs for each, to have enough bytes in flight; many
rows need larger ones, which cost less to start.
"""

from dataclasses import dataclass
from functools import cache

from punica_kernels.lora_table import SMALL_TABLE_TILES, LoraTableShape


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
    #: A row of several items takes 1, 2, ... or 2 ** (row_powers - 1) of them at a time.
    row_powers: int
    num_warps: int
    #: Of a thread. The compiler would take more to no use, and fewer programs would run at a time.
    max_registers: int


# Tiles of the largest decode whose projections leave room for LoRA beside them.
_DECODE_TILES = 64
# Outputs times items that a program has weights of at a time for a row: more do not fit its registers.
_ROW_WEIGHTS = 512
# Outputs from which a prefill's tiles are so many that programs may be larger.
_WIDE_OUTPUTS = 8192


def num_splits(shape: LoraTableShape, num_slices: int) -> int:
    """Parts of h_in, a power of two: the fewer tiles, the more. A split past a small h_in sums to zero."""
    num_tiles = shape.max_tiles * num_slices if _holds_prefill(shape) else shape.max_tiles
    if shape.max_tiles * num_slices <= 16:
        return 16
    return 8 if num_tiles <= _DECODE_TILES else 4


@cache
def shrink_config(shape: LoraTableShape, h_in: int, num_slices: int) -> ShrinkConfig:
    """The shrink of a group of `num_slices` stacked projections with `h_in` inputs."""
    splits = num_splits(shape, num_slices)
    most = 256 if _holds_prefill(shape) else 512
    block_k = min(most, max(16, _next_power_of_two(_ceil_div(h_in, splits))))
    is_small = shape.max_tiles <= SMALL_TABLE_TILES
    return ShrinkConfig(
        splits=splits,
        split_k=_ceil_div(_ceil_div(h_in, block_k), splits) * block_k,
        block_k=block_k,
        # A few tiles of high ranks leave room for more programs than tiles.
        item_programs=shape.max_tiles * (2 if is_small and shape.max_tile_items > 1 else 1),
        num_warps=min(4, max(1, block_k // 64)),
    )


@cache
def expand_config(shape: LoraTableShape, num_slices: int, widest_slice: int) -> ExpandConfig:
    """The expand of a group of so many projections, of which the widest has so many outputs."""
    block_n, tile_n, max_registers = _expand_blocks(shape, num_slices * widest_slice)
    block_n = min(block_n, max(16, _next_power_of_two(widest_slice)))
    tile_n = min(tile_n, block_n)
    items = min(_next_power_of_two(shape.max_tile_items), max(1, _ROW_WEIGHTS // block_n))
    return ExpandConfig(
        splits=num_splits(shape, num_slices),
        block_n=block_n,
        tile_n=tile_n,
        row_powers=items.bit_length(),
        num_warps=1,
        max_registers=max_registers,
    )


def _expand_blocks(shape: LoraTableShape, num_outputs: int) -> tuple[int, int, int]:
    """Outputs of a program, those that it takes at a time for a tile of several rows, and registers of a thread."""
    if _holds_prefill(shape):
        return 256 if num_outputs > _WIDE_OUTPUTS else 128, 128, 168
    if shape.max_tiles <= SMALL_TABLE_TILES:
        return 128, 64, 168
    # Where there are more tiles, a wider part costs fewer programs that each add up the same rows of v.
    return (256, 128, 192) if shape.max_tiles <= _DECODE_TILES else (128, 128, 168)


def _holds_prefill(shape: LoraTableShape) -> bool:
    """Whether so many rows can only be a prefill's and some decodes'."""
    return shape.max_tiles < shape.max_rows and shape.max_rows > _DECODE_TILES


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _next_power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
