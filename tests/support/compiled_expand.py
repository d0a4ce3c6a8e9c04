"""Compiles SGMV's expand for an H200 and prints two lines: how often it changes a tensor's layout, for each number of
splits, and how many bytes spill where programs take tiles in turns, for each number of slices.
"""

import re
import subprocess
import sys
import tempfile
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from punica_kernels.gpu.sgmv_config import expand_config
from punica_kernels.gpu.sgmv_expand import sgmv_expand
from punica_kernels.lora_table import LoraTableShape

SPLITS = (4, 8, 16)
SLICES = (2, 3)
_TYPES = {
    **{"y": "*bf16", "v": "*fp32", "b": "*bf16", "tiles": "*i32"},
    **{"max_tiles": "i32", "y_stride": "i32", "page_stride": "i32"},
}
_CONSTANTS = {
    **{"END_0": 4096, "END_1": 4096, "END_2": 4096, "TILE_WORDS": 7, "SLICES": 1, "MAX_RANKS": 16},
    **{"BLOCK_N": 128, "TILE_N": 64, "LOG2_BLOCKS": 0, "IN_TURNS": False},
    **{"EVEN_N": True, "ACCUMULATE": True, "PDL_WAIT": True, "PDL_TRIGGER": False},
}


def compiled(changes: dict[str, Any], **options: int) -> dict[str, str]:
    """The code by stage."""
    names = sgmv_expand.arg_names
    signature = {name: _TYPES.get(name, "constexpr") for name in names}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in _TYPES if name != "max_tiles"}
    source = ASTSource(sgmv_expand, signature, {**_CONSTANTS, **changes}, aligned)
    code: dict[str, str] = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm
    return code


def count_conversions(split_k: int) -> int:
    return compiled({"SPLIT_K": split_k}, num_warps=1)["ttgir"].count("ttg.convert_layout")


def spilled_bytes(num_slices: int) -> int:
    """256 decodes of ranks to 16, as the engine adds LoRA to a group of 4096 outputs a slice beside its product."""
    shape = LoraTableShape(256, 256, 2)
    config = expand_config(shape, num_slices, 4096, 2)
    ends = {f"END_{number}": 4096 * min(number + 1, num_slices) for number in range(3)}
    blocks = {"BLOCK_N": config.block_n, "TILE_N": config.tile_n, "LOG2_BLOCKS": config.log2_blocks}
    step = {"SPLIT_K": config.split_k, "SLICES": num_slices, "ACCUMULATE": False, "IN_TURNS": True}
    code = compiled({**ends, **blocks, **step}, num_warps=config.num_warps, maxnreg=config.max_registers)
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(code["ptx"])
        file.flush()
        assembler = [triton.knobs.nvidia.ptxas.path, "-v", "--gpu-name=sm_90a", "-o", "/dev/null", file.name]
        said = subprocess.run(assembler, capture_output=True, text=True, check=True, timeout=60).stderr
    return max(map(int, re.findall(r"(\d+) bytes spill", said)))


if __name__ == "__main__":
    lines = [*map(count_conversions, SPLITS)], [*map(spilled_bytes, SLICES)]
    sys.stdout.write("\n".join(" ".join(map(str, line)) for line in lines))
