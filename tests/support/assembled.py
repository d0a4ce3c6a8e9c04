"""Hopper's attention kernels in Gluon, compiled for an H200 without one."""

import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource

Constants = dict[str, int | None]

_TYPES = {
    **dict.fromkeys(("out", "q", "keys", "values"), "*bf16"),
    **dict.fromkeys(("pages", "tiles", "counts"), "*i32"),
    **dict.fromkeys(("split_acc", "split_m", "split_l"), "*fp32"),
    **dict.fromkeys(("scale", "log2_soft_cap"), "fp32"),
}
#: Strides that the kernels' callers have: whole rows of heads.
_STRIDES = ("out_row_stride", "out_head_stride", "q_row_stride", "q_head_stride", "page_rows", "slot_rows", "head_rows")


class Assembled(NamedTuple):
    """The compiler's work."""

    #: The assembler's remarks.
    said: str
    #: Lines of the machine's code, labels among them.
    code: list[str]


def assemble(kernel: Any, constants: Constants) -> Assembled:
    """Compiles a kernel of four warps, or of warpgroups that specialize from four."""
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else _TYPES.get(name, "i32") for name in names}
    aligned = [*_STRIDES, *(name for name, kind in signature.items() if kind.startswith("*"))]
    source = GluonASTSource(
        kernel,
        signature,
        {(names.index(name),): value for name, value in constants.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    assembler, disassembler = triton.knobs.nvidia.ptxas.path, triton.knobs.nvidia.nvdisasm.path
    with tempfile.TemporaryDirectory() as folder:
        ptx, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        ptx.write_text(compiled.asm["ptx"])
        said = _run(assembler, "-v", "--gpu-name=sm_90a", "-o", str(cubin), str(ptx)).stderr
        return Assembled(said, _run(disassembler, "-c", str(cubin)).stdout.splitlines())


def _run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
