"""Compiles SGMV's expand for an H200 and prints how often it changes a tensor's layout, for each number of splits."""

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from punica_kernels.gpu.sgmv_expand import sgmv_expand

SPLITS = (4, 8, 16)
_TYPES = {"y": "*bf16", "v": "*fp32", "b": "*bf16", "tiles": "*i32", "y_stride": "i32", "page_stride": "i32"}
_CONSTANTS = {
    **{"END_0": 4096, "END_1": 4096, "END_2": 4096, "TILE_WORDS": 7, "SLICES": 1, "MAX_RANKS": 16},
    **{"BLOCK_N": 128, "TILE_N": 64, "LOG2_BLOCKS": 0},
    **{"EVEN_N": True, "ACCUMULATE": True, "PDL_WAIT": True, "PDL_TRIGGER": False},
}


def count_conversions(split_k: int) -> int:
    signature = {name: _TYPES.get(name, "constexpr") for name in sgmv_expand.arg_names}
    aligned = {(place,): [["tt.divisibility", 16]] for place in range(len(_TYPES))}
    source = ASTSource(sgmv_expand, signature, {**_CONSTANTS, "SPLIT_K": split_k}, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1})
    code: str = compiled.asm["ttgir"]
    return code.count("ttg.convert_layout")


if __name__ == "__main__":
    sys.stdout.write("\n".join(str(count_conversions(split_k)) for split_k in SPLITS))
