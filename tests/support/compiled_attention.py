"""Compiles Hopper's attention of prompts for an H200 and prints, a line for each configuration, what the assembler says
of registers that spill and of products that wait for each other. The argument is the number of configurations.
"""

import re
import sys

from assembled import Constants, assemble
from punica_kernels.gpu.hopper_attention import hopper_attention
from punica_kernels.tile_fields import TILE_WORDS

_CONSTANTS: Constants = {
    **{"TILE_WORDS": TILE_WORDS, "HEAD_DIM": 128, "PAGE_SIZE": 16, "KV_HEADS": 32, "GROUP": 1, "BLOCK_GROUP": 1},
    **{"BLOCK_M": 64, "BLOCK_N": 64, "DEPTH": 2, "WINDOW": 0, "PDL_TRIGGER": True, "PDL_WAIT": True},
}
#: Those that need most registers come first.
_CONFIGURATIONS: tuple[Constants, ...] = (
    {},
    {"log2_soft_cap": None, "KV_HEADS": 4, "GROUP": 8, "BLOCK_GROUP": 8, "DEPTH": 1},
    {"log2_soft_cap": None},
    {"log2_soft_cap": None, "WINDOW": 1024},
    {"log2_soft_cap": None, "HEAD_DIM": 64},
)


def complaints(changes: Constants) -> str:
    """Empty where the code is as it should be."""
    said = assemble(hopper_attention, {**_CONSTANTS, **changes}).said
    spills = [spill for spill in re.findall(r"\d+ bytes spill \w+", said) if not spill.startswith("0 ")]
    return "; ".join([*re.findall(r".*wgmma.*", said), *spills])


if __name__ == "__main__":
    sys.stdout.write("\n".join(complaints(changes) for changes in _CONFIGURATIONS[: int(sys.argv[1])]) + "\n")
