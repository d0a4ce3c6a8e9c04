"""The work that the warpgroups of `hopper_prompts` share: tiles, which they take in turns, and barriers between them.

`number` counts the program's blocks of tokens over all its tiles: block `number` lies in stage `number % STAGES`, and
the phase of a stage's barriers changes with each block.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from punica_kernels.gpu.attention_constants import FIRST_PAGE, FIRST_ROW, LAST_VISIBLE, NUM_ROWS, NUM_TOKENS


class Work(NamedTuple):
    """The table of all programs' tiles."""

    tiles: gl.tensor
    max_tiles: gl.tensor


class Barriers(NamedTuple):
    """*Full*: the loader has filled the place. *Empty*: both halves have read what was there."""

    q_full: gl.shared_memory_descriptor
    q_empty: gl.shared_memory_descriptor
    k_full: gl.shared_memory_descriptor
    k_empty: gl.shared_memory_descriptor
    v_full: gl.shared_memory_descriptor
    v_empty: gl.shared_memory_descriptor


class PromptTile(NamedTuple):
    """A tile and its kv head. The first row is -1 past the last tile."""

    first_row: gl.tensor
    kv_head: gl.tensor
    num_rows: gl.tensor
    first_page: gl.tensor
    num_tokens: gl.tensor
    #: The last token that the first row sees.
    last_visible: gl.tensor


@gluon.jit
def tile_place(turn, work, sizes: gl.constexpr):
    """The program's work in this turn: where the words of its tile lie, whether there is one, and the kv head.

    Programs take the longest tiles first, and every second time in reverse, so that all have about the same work.
    """
    program = gl.program_id(0)
    number = turn * gl.num_programs(0) + gl.where(turn % 2 == 0, program, gl.num_programs(0) - 1 - program)
    tile = number // sizes.KV_HEADS
    return work.tiles + tile * sizes.TILE_WORDS, tile < work.max_tiles, number % sizes.KV_HEADS


@gluon.jit
def load_tile(turn, work, sizes: gl.constexpr):
    """The turn's tile."""
    words, is_tile, kv_head = tile_place(turn, work, sizes)
    return PromptTile(
        first_row=gl.load(words + FIRST_ROW, mask=is_tile, other=-1),
        kv_head=kv_head,
        num_rows=gl.load(words + NUM_ROWS, mask=is_tile, other=0),
        first_page=gl.load(words + FIRST_PAGE, mask=is_tile, other=0),
        num_tokens=gl.load(words + NUM_TOKENS, mask=is_tile, other=0),
        last_visible=gl.load(words + LAST_VISIBLE, mask=is_tile, other=0),
    )
