"""Compiles Hopper's attention of long prompts for an H200 and prints, a line for each configuration, what is wrong: the
assembler's remarks on products that wait for each other, and registers that spill in a loop over blocks of tokens. The
argument is the number of configurations.
"""

import re
import sys

from assembled import Constants, assemble
from punica_kernels.gpu.attention_config import hopper_prompts_config
from punica_kernels.gpu.hopper_prompts import hopper_prompts
from punica_kernels.tile_fields import TILE_WORDS

_CONSTANTS: Constants = {
    **{"TILE_WORDS": TILE_WORDS, "HEAD_DIM": 128, "PAGE_SIZE": 16, "KV_HEADS": 32, "GROUP": 1, "BLOCK_GROUP": 1},
    **{"WINDOW": 0, "log2_soft_cap": None, "PDL_TRIGGER": True, "PDL_WAIT": True},
}
#: And the loads of spilled registers in a loop. Heads of 256 need more registers than there are.
_CONFIGURATIONS: tuple[tuple[Constants, int], ...] = (
    ({}, 0),
    ({"KV_HEADS": 8, "GROUP": 2, "BLOCK_GROUP": 2, "HEAD_DIM": 256}, 5),
    ({"KV_HEADS": 4, "GROUP": 8, "BLOCK_GROUP": 8}, 0),
    ({"WINDOW": 1024}, 0),
)
_SPILL = re.compile(r"\b(STL|LDL)\b")
_LABEL = re.compile(r"^(\.L_x_\d+):")
_BRANCH = re.compile(r"\bBRA.*\((\.L_x_\d+)\)")


def complaints(changes: Constants, max_spills: int) -> str:
    """Empty where the code is as it should be."""
    constants = {**_CONSTANTS, **changes}
    blocks = hopper_prompts_config(constants["HEAD_DIM"] or 0)._asdict()
    del blocks["num_warps"]
    said, code = assemble(hopper_prompts, {**constants, **blocks})
    loops = _loops_of_products(code)
    # Each of the two warpgroups that attend has a loop over blocks that all rows see, and one over the others.
    found = [] if len(loops) >= 4 else [f"{len(loops)} loops have products"]
    found += [f"{spills} spills" for spills in map(_num_spills, loops) if spills > max_spills]
    return "; ".join([*re.findall(r".*wgmma.*", said), *found])


def _num_spills(body: list[str]) -> int:
    return sum(_SPILL.search(line) is not None for line in body)


def _loops_of_products(code: list[str]) -> list[list[str]]:
    """The loops over blocks, from their labels to the branches back: they have products and write no results."""
    labels = {found[1]: number for number, line in enumerate(code) if (found := _LABEL.match(line))}
    branches = [(labels[found[1]], end) for end, line in enumerate(code) if (found := _BRANCH.search(line))]
    bodies = [code[start:end] for start, end in branches if start < end]
    return [body for body in bodies if _has("HGMMA", body) and not _has("STG", body)]


def _has(operation: str, body: list[str]) -> bool:
    return any(operation in line for line in body)


if __name__ == "__main__":
    sys.stdout.write("\n".join(complaints(*each) for each in _CONFIGURATIONS[: int(sys.argv[1])]) + "\n")
