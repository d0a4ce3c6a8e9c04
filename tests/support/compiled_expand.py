"""Compiles SGMV's expand for an H200 and prints three lines: how often it changes a tensor's layout, for each number of
splits; how many bytes spill where programs take tiles in turns and beside long prompts, for each number of slices; and
how many spill within the activation, for decodes and for prompts. The argument is how many of each: one of splits more.
"""

import re
import subprocess
import sys
import tempfile
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from punica_kernels.gpu.sgmv_activation import sgmv_activation
from punica_kernels.gpu.sgmv_config import ExpandConfig, activation_config, expand_config, row_block_n
from punica_kernels.gpu.sgmv_expand import sgmv_expand
from punica_kernels.gpu.sgmv_prompt_activation import sgmv_prompt_activation
from punica_kernels.gpu.sgmv_prompt_expand import sgmv_prompt_expand
from punica_kernels.integers import ceil_div
from punica_kernels.lora_table import LoraTableShape

SPLITS = (4, 16, 8)
SLICES = (3, 2)
#: Those of 256 decodes and of prompts of 512 and 2,048 beside 31, with room for ranks to 128.
ACTIVATION_SHAPES = (LoraTableShape(256, 256, 16), LoraTableShape(543, 33, 16), LoraTableShape(2079, 33, 16))
_TYPES = {
    **{"y": "*bf16", "out": "*bf16", "gate_up": "*bf16", "v": "*fp32", "b": "*bf16", "tiles": "*i32"},
    **dict.fromkeys(("max_tiles", "y_stride", "out_stride", "gate_up_stride", "page_stride"), "i32"),
}
_CONSTANTS = {
    **{"END_0": 4096, "END_1": 4096, "END_2": 4096, "TILE_WORDS": 7, "TILE_ROWS": 16, "SLICES": 1, "MAX_RANKS": 16},
    **{"BLOCK_N": 128, "TILE_N": 64, "LOG2_BLOCKS": 0, "IN_TURNS": False},
    **{"EVEN_N": True, "ACCUMULATE": True, "PDL_WAIT": True, "PDL_TRIGGER": False},
}


def compiled(kernel: Any, constants: dict[str, Any], **options: int) -> dict[str, str]:
    """The code by stage."""
    names = kernel.arg_names
    signature = {name: _TYPES.get(name, "constexpr") for name in names}
    aligned = [name for name in names if name in _TYPES and name != "max_tiles"]
    source = ASTSource(
        kernel, signature, constants, {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    )
    code: dict[str, str] = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm
    return code


def count_conversions(split_k: int) -> int:
    return compiled(sgmv_expand, {**_CONSTANTS, "SPLIT_K": split_k}, num_warps=1)["ttgir"].count("ttg.convert_layout")


def spilled_bytes(num_slices: int) -> int:
    """256 decodes of ranks to 16, as the engine adds LoRA to a group of 4096 outputs a slice beside its product."""
    shape = LoraTableShape(256, 256, 2)
    config = expand_config(shape, num_slices, 4096, torch.bfloat16)
    ends = {f"END_{number}": 4096 * min(number + 1, num_slices) for number in range(3)}
    blocks = {"BLOCK_N": config.block_n, "TILE_N": config.tile_n, "LOG2_BLOCKS": config.log2_blocks}
    step = {"SPLIT_K": config.split_k, "SLICES": num_slices, "ACCUMULATE": False, "IN_TURNS": True}
    constants = {**_CONSTANTS, **ends, **blocks, **step}
    return _spilled(compiled(sgmv_expand, constants, num_warps=config.num_warps, maxnreg=config.max_registers))


def spilled_beside_prompts(num_slices: int) -> int:
    """The same of a prompt of 2,048 tokens beside 31 decodes."""
    shape = LoraTableShape(2079, 33, 16)
    config = expand_config(shape, num_slices, 4096, torch.bfloat16)
    ends = {f"END_{number}": 4096 * min(number + 1, num_slices) for number in range(3)}
    constants = {**_CONSTANTS, **ends, **_prompt_sizes(shape, config, 4096 * num_slices), "SLICES": num_slices}
    constants["ACCUMULATE"] = False
    return _spilled_in(sgmv_prompt_expand, constants, config)


def spilled_by_activation(shape: LoraTableShape) -> int:
    config = activation_config(shape, 11008, torch.bfloat16)
    constants = {
        **{"WIDTH": 11008, "GELU": False, "TILE_WORDS": shape.tile_words, "MAX_RANKS": shape.max_ranks},
        **{"TILE_ROWS": shape.tile_rows, "PDL_WAIT": False, "PDL_TRIGGER": True},
    }
    if shape.holds_long_prompts:
        return _spilled_in(sgmv_prompt_activation, constants | _prompt_sizes(shape, config, 11008), config)
    blocks = {"BLOCK_N": config.block_n, "TILE_N": config.tile_n, "LOG2_BLOCKS": config.log2_blocks}
    return _spilled_in(sgmv_activation, {**constants, **blocks, "SPLIT_K": config.split_k}, config)


def _prompt_sizes(shape: LoraTableShape, config: ExpandConfig, num_outputs: int) -> dict[str, Any]:
    row_block = row_block_n(num_outputs)
    return {
        **{"TILE_WORDS": shape.tile_words, "TILE_ROWS": shape.tile_rows, "MAX_RANKS": shape.max_ranks},
        **{
            "BLOCK_N": config.block_n,
            "ROW_BLOCK_N": row_block,
            "ROW_BLOCKS": ceil_div(num_outputs, row_block),
            "EVEN_ROWS": True,
        },
    }


def _spilled_in(kernel: Any, constants: dict[str, Any], config: ExpandConfig) -> int:
    """Bytes. Constants that the kernel does not take are left out."""
    own = {name: value for name, value in constants.items() if name in kernel.arg_names}
    return _spilled(compiled(kernel, own, num_warps=config.num_warps, maxnreg=config.max_registers))


def _spilled(code: dict[str, str]) -> int:
    """Bytes."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(code["ptx"])
        file.flush()
        assembler = [triton.knobs.nvidia.ptxas.path, "-v", "--gpu-name=sm_90a", "-o", "/dev/null", file.name]
        said = subprocess.run(assembler, capture_output=True, text=True, check=True, timeout=60).stderr
    return max(map(int, re.findall(r"(\d+) bytes spill", said)))


if __name__ == "__main__":
    number = int(sys.argv[1])
    lines = (
        [*map(count_conversions, SPLITS[: number + 1])],
        [*map(spilled_bytes, SLICES[:number]), *map(spilled_beside_prompts, SLICES[:number])],
        [*map(spilled_by_activation, ACTIVATION_SHAPES[:number])],
    )
    sys.stdout.write("\n".join(" ".join(map(str, line)) for line in lines))
