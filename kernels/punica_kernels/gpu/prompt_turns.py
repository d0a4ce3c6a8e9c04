"""The turns in which the programs of a table for long prompts take its tiles (`punica_kernels.lora_table`).

Programs have four warps, since one has no registers for a large tile. For a tile of one row such a program has too
little work: it takes many more outputs, and ROWS_IN_TURN of these tiles take one turn.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from punica_kernels.gpu.lora_constants import NUM_TILES, ROWS_IN_TURN, WIDE_TILES


# The kernels build this tuple by keyword: the compiler's cache does not see the order of fields.
class Turns(NamedTuple):
    """How the tiles of a table divide into turns."""

    #: Tiles of several rows. They come first, and each takes a turn.
    wide_tiles: tl.tensor
    #: All tiles.
    num_tiles: tl.tensor
    #: All turns.
    count: tl.tensor


@triton.jit
def first_turn():
    """Returns this program's first turn. The programs that start first take the last turns, those of single rows: these
    wait for weights that no other program reads.
    """
    return tl.num_programs(1) - 1 - tl.program_id(1)


@triton.jit
def load_turns(tiles):
    """The turns of the table at `tiles`."""
    wide_tiles, num_tiles = tl.load(tiles + WIDE_TILES), tl.load(tiles + NUM_TILES)
    count = wide_tiles + tl.cdiv(num_tiles - wide_tiles, ROWS_IN_TURN)
    return Turns(wide_tiles=wide_tiles, num_tiles=num_tiles, count=count)


@triton.jit
def row_tile_number(turn, item, turns):
    """Returns the number of an item's tile of one row, perhaps past the last one. Items count tiles, then blocks."""
    return turns.wide_tiles + (turn - turns.wide_tiles) * ROWS_IN_TURN + item % ROWS_IN_TURN
