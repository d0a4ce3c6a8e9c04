"""Compiles Hopper's attention of prompts for an H200 and prints, a line for each configuration, what the assembler says
of registers that spill and of products that wait for each other. The argument is the number of configurations.
"""

import re
import subprocess
import sys
import tempfile

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource

from punica_kernels.gpu.hopper_attention import hopper_attention
from punica_kernels.tile_fields import TILE_WORDS

_TYPES = {
    **dict.fromkeys(("out", "q", "keys", "values"), "*bf16"),
    **dict.fromkeys(("pages", "tiles", "counts"), "*i32"),
    **dict.fromkeys(("split_acc", "split_m", "split_l"), "*fp32"),
    **dict.fromkeys(("scale", "log2_soft_cap"), "fp32"),
}
#: Strides that the kernel's callers have: whole rows of heads.
_STRIDES = ("out_row_stride", "out_head_stride", "q_row_stride", "q_head_stride", "page_rows", "slot_rows", "head_rows")
_CONSTANTS = {
    **{"TILE_WORDS": TILE_WORDS, "HEAD_DIM": 128, "PAGE_SIZE": 16, "KV_HEADS": 32, "GROUP": 1, "BLOCK_GROUP": 1},
    **{"BLOCK_M": 64, "BLOCK_N": 64, "DEPTH": 2, "WINDOW": 0, "PDL_TRIGGER": True, "PDL_WAIT": True},
}
#: Those that need most registers come first.
_CONFIGURATIONS: tuple[dict[str, int | None], ...] = (
    {},
    {"log2_soft_cap": None, "KV_HEADS": 4, "GROUP": 8, "BLOCK_GROUP": 8, "DEPTH": 1},
    {"log2_soft_cap": None},
    {"log2_soft_cap": None, "WINDOW": 1024},
    {"log2_soft_cap": None, "HEAD_DIM": 64},
)


def complaints(changes: dict[str, int | None]) -> str:
    """Empty where the code is as it should be."""
    names = hopper_attention.arg_names
    constants = {**_CONSTANTS, **changes}
    signature = {name: "constexpr" if name in constants else _TYPES.get(name, "i32") for name in names}
    aligned = [*_STRIDES, *(name for name, kind in signature.items() if kind.startswith("*"))]
    source = GluonASTSource(
        hopper_attention,
        signature,
        {(names.index(name),): value for name, value in constants.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(compiled.asm["ptx"])
        file.flush()
        assembler = [triton.knobs.nvidia.ptxas.path, "-v", "--gpu-name=sm_90a", "-o", "/dev/null", file.name]
        said = subprocess.run(assembler, capture_output=True, text=True, check=True, timeout=60).stderr
    spills = [spill for spill in re.findall(r"\d+ bytes spill \w+", said) if not spill.startswith("0 ")]
    return "; ".join([*re.findall(r".*wgmma.*", said), *spills])


if __name__ == "__main__":
    sys.stdout.write("\n".join(complaints(changes) for changes in _CONFIGURATIONS[: int(sys.argv[1])]) + "\n")
