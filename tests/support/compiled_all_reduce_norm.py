"""Compiles a layer's exchange for an H200 and prints, a line for each configuration, what is amiss with its code. The
argument is the number of configurations.
"""

import re
import subprocess
import sys
import tempfile

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from punica_kernels.gpu.all_reduce_norm import OPTIONS
from punica_kernels.gpu.all_reduce_norm import all_reduce_add_rms_norm_kernel as kernel
from punica_kernels.gpu.norm import row_config

_TYPES = {
    **dict.fromkeys(("out", "residual", "weight", "delta", "added_weight"), "*bf16"),
    **{"x": "*fp32", "eps": "fp32", "addresses": "*i64", "turns": "*i32"},
}
_CONSTANTS = {"SPLIT_K": 2, "RANK": 0, "MAX_ROWS": 64, "ROWS_OFFSET": 512}
#: Width and ranks.
_CONFIGURATIONS: tuple[tuple[int, int], ...] = ((4096, 2), (8192, 4), (5376, 2), (8192, 2), (8192, 8))
_THREADS = 32


def complaints(width: int, size: int) -> str:
    """Empty where nothing spills and each thread reads and writes rows of other ranks 16 bytes at once."""
    config = row_config(width)
    num_warps = config.pop("num_warps")
    constants = {**_CONSTANTS, **config, "SIZE": size, "LANES": size}
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else _TYPES.get(name, "i32") for name in names}
    aligned = [name for name, kind in signature.items() if kind.startswith("*") or name.endswith("stride")]
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(kernel, signature, constants, attributes)
    options = {"num_warps": num_warps, **OPTIONS}
    ptx: str = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
    found = [spill for spill in re.findall(r"\d+ bytes spill \w+", _assembled(ptx)) if not spill.startswith("0 ")]
    reads = ptx.count("ld.volatile.global.v4.b32")
    expected = (size - 1) * config["BLOCK"] // (num_warps * _THREADS * 8)
    found += [] if reads == expected == ptx.count("ld.volatile") else [f"{reads} wide reads, not {expected}"]
    found += [] if "release.add" in ptx and "acquire.sys.cas" in ptx and "call.uni __assertfail" in ptx else ["no wait"]
    return "; ".join(found)


def _assembled(ptx: str) -> str:
    """The assembler's report."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        assembler = [triton.knobs.nvidia.ptxas.path, "-v", "--gpu-name=sm_90a", "-o", "/dev/null", file.name]
        return subprocess.run(assembler, capture_output=True, text=True, check=True, timeout=60).stderr


if __name__ == "__main__":
    sys.stdout.write("\n".join(complaints(*each) for each in _CONFIGURATIONS[: int(sys.argv[1])]) + "\n")
