"""Launch shapes of the SGMV kernels, from a table's shape and a group's widths alone, since a CUDA graph fixes them.

Measured on an H200 (docs/performance.md). A few rows need many programs each, to have enough bytes in flight; many rows
need larger programs, which cost less to start.
"""

from dataclasses import dataclass
from functools import cache

import torch

from punica_kernels.integers import ceil_div, next_power_of_two
from punica_kernels.lora_table import SMALL_TABLE_TILES, LoraTableShape


@dataclass(frozen=True, slots=True)
class ShrinkConfig:
    """Launch configuration of the shrink of one group."""

    #: Splits of h_in; each writes its own partial sums.
    split_k: int
    #: Elements of h_in in a split: whole blocks.
    k_per_split: int
    #: Elements of h_in that a program multiplies at a time.
    block_k: int
    #: Programs along the rank blocks, which they take in turns.
    rank_block_programs: int
    num_warps: int


@dataclass(frozen=True, slots=True)
class ExpandConfig:
    """Launch configuration of the expand of one group, alone or within the activation.

    Long prompts have one sum, take all outputs of a program at a time and one rank block of a row: their kernels read
    the other fields alone.
    """

    #: Partial sums to add up, as the shrink leaves them.
    split_k: int
    #: Programs along the tiles, which they take in turns.
    tile_programs: int
    #: Outputs of a program.
    block_n: int
    #: Outputs that a program computes at a time for a tile of several rows.
    tile_n: int
    #: A row takes 1, 2, 4, ... or 2 ** log2_blocks rank blocks at a time.
    log2_blocks: int
    num_warps: int
    #: Registers of a thread. The compiler would take more without gain, and fewer programs would run at a time.
    max_registers: int


# Tiles of the largest decode whose projections leave room for LoRA beside them.
_DECODE_TILES = 64
# Outputs times rank blocks whose weights a program holds at a time for a row: more do not fit its registers.
_ROW_WEIGHTS = 512
# From so many tiles on, programs of an expand of decodes take them in turns: so many programs in all, and at least so
# many along the tiles.
_MANY_TILES = 128
_EXPAND_PROGRAMS = 8192
_LEAST_TILE_PROGRAMS = 32
# From so many rows on, a prefill's activation expands gate and up.
_ACTIVATION_ROWS = 512
# Registers of a thread that tiles of long prompts fit: float16 has products of its own for its scales, and float32 none
# on tensor cores.
_PROMPT_REGISTERS = {torch.bfloat16: 128, torch.float16: 168, torch.float32: 255}
# Outputs of a row that a program takes at a time beside long prompts: 8 for each of its threads, which then adds up a
# column's ranks by itself.
_ROW_OUTPUTS = 1024
# Beyond so many outputs a prefill has enough tiles for larger programs.
_WIDE_OUTPUTS = 8192


def num_splits(shape: LoraTableShape, num_slices: int) -> int:
    """Partial sums that a shrink leaves in v, a power of two: the fewer tiles, the more. One for long prompts.

    Where they are splits of h_in, one past a small h_in sums to zero.
    """
    if shape.holds_long_prompts:
        return 1
    num_tiles = shape.max_tiles * num_slices if _holds_prefill(shape) else shape.max_tiles
    if shape.max_tiles * num_slices <= 16:
        return 16
    return 8 if num_tiles <= _DECODE_TILES else 4


def row_block_n(widest_slice: int) -> int:
    """Outputs of a tile of one row that a program takes at a time, beside long prompts."""
    return min(_ROW_OUTPUTS, max(16, next_power_of_two(widest_slice)))


@cache
def shrink_config(shape: LoraTableShape, h_in: int, num_slices: int) -> ShrinkConfig:
    """The shrink of a group of `num_slices` stacked projections with `h_in` inputs."""
    split_k = num_splits(shape, num_slices)
    most = 256 if _holds_prefill(shape) else 512
    block_k = min(most, max(16, next_power_of_two(ceil_div(h_in, split_k))))
    is_small = shape.max_tiles <= SMALL_TABLE_TILES
    return ShrinkConfig(
        split_k=split_k,
        k_per_split=ceil_div(ceil_div(h_in, block_k), split_k) * block_k,
        block_k=block_k,
        # A few tiles of high ranks leave room for more programs than tiles.
        rank_block_programs=shape.max_tiles * (2 if is_small and shape.max_tile_rank_blocks > 1 else 1),
        num_warps=min(4, max(1, block_k // 64)),
    )


@cache
def expand_config(shape: LoraTableShape, num_slices: int, widest_slice: int, dtype: torch.dtype) -> ExpandConfig:
    """The expand of a group of `num_slices` projections, the widest of which has `widest_slice` outputs.

    `dtype`: of the weights.
    """
    num_outputs = num_slices * widest_slice
    takes_turns = _takes_turns(shape, dtype.itemsize)
    block_n, tile_n, max_registers = (256, 64, 96) if takes_turns else _expand_blocks(shape, num_outputs, dtype)
    block_n = min(block_n, max(16, next_power_of_two(widest_slice)))
    tile_n = min(tile_n, block_n)
    num_blocks = min(next_power_of_two(shape.max_tile_rank_blocks), max(1, _ROW_WEIGHTS // block_n))
    return ExpandConfig(
        split_k=num_splits(shape, num_slices),
        tile_programs=_turn_programs(shape, ceil_div(num_outputs, block_n)) if takes_turns else _tile_programs(shape),
        block_n=block_n,
        tile_n=tile_n,
        log2_blocks=num_blocks.bit_length() - 1,
        num_warps=_tile_warps(shape),
        max_registers=max_registers,
    )


@cache
def activation_config(shape: LoraTableShape, width: int, dtype: torch.dtype) -> ExpandConfig:
    """The expand of gate and up, of `width` outputs each, within their activation.

    `dtype`: of the weights.
    """
    block_n = min(128 // dtype.itemsize if shape.holds_long_prompts else 128, max(16, next_power_of_two(width)))
    # A row holds weights of gate and of up.
    num_blocks = min(next_power_of_two(shape.max_tile_rank_blocks), max(1, _ROW_WEIGHTS // 2 // block_n))
    holds_prefill = _holds_prefill(shape)
    return ExpandConfig(
        split_k=num_splits(shape, 2),
        tile_programs=_tile_programs(shape) if holds_prefill else _turn_programs(shape, ceil_div(width, block_n)),
        block_n=block_n,
        tile_n=block_n if shape.holds_long_prompts else min(32, block_n),
        log2_blocks=num_blocks.bit_length() - 1,
        num_warps=_tile_warps(shape),
        max_registers=_PROMPT_REGISTERS[dtype] if shape.holds_long_prompts else 168,
    )


def activation_expands(shape: LoraTableShape, itemsize: int) -> bool:
    """Whether the activation expands gate and up, where that was measured to gain (docs/notes/performance.md).

    `itemsize`: bytes of a weight.
    """
    if _holds_prefill(shape):
        return shape.max_rows >= _ACTIVATION_ROWS
    return shape.max_tiles >= _MANY_TILES and not _takes_turns(shape, itemsize)


def _tile_warps(shape: LoraTableShape) -> int:
    """Warps of a program: one has no registers for a large tile."""
    return 4 if shape.holds_long_prompts else 1


def _tile_programs(shape: LoraTableShape) -> int:
    """Programs along the tiles where each has its own, as far as that goes."""
    return shape.usual_turns if shape.holds_long_prompts else shape.max_tiles


def _turn_programs(shape: LoraTableShape, num_blocks: int) -> int:
    """Programs along the tiles, which they take in turns, for each of so many blocks of outputs."""
    return min(shape.max_tiles, max(_LEAST_TILE_PROGRAMS, ceil_div(_EXPAND_PROGRAMS, num_blocks)))


def _takes_turns(shape: LoraTableShape, itemsize: int) -> bool:
    """Whether programs of an expand take tiles in turns: many decodes alone, of ranks to 16 in 16 bits.

    Their table has an entry for each row, mostly empty where they share adapters: a program for each would start to
    find nothing (docs/notes/performance.md, "What limits larger batches"). Other weights don't fit so few registers.
    """
    fits_registers = shape.max_tile_rank_blocks == 1 and itemsize <= 2
    return fits_registers and shape.max_tiles >= _MANY_TILES and not _holds_prefill(shape)


def _expand_blocks(shape: LoraTableShape, num_outputs: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """(block_n, tile_n, max_registers) of an expand whose tiles have a program each."""
    if shape.holds_long_prompts:
        return 128, 128, _PROMPT_REGISTERS[dtype]
    if _holds_prefill(shape):
        return 256 if num_outputs > _WIDE_OUTPUTS else 128, 128, 168
    if shape.max_tiles <= SMALL_TABLE_TILES:
        return 128, 64, 168
    # With more tiles, wider blocks mean fewer programs that add up the same rows of v.
    return (256, 128, 192) if shape.max_tiles <= _DECODE_TILES else (128, 128, 168)


def _holds_prefill(shape: LoraTableShape) -> bool:
    """Whether the table has more rows than decodes alone can have."""
    return shape.max_tiles < shape.max_rows and shape.max_rows > _DECODE_TILES
