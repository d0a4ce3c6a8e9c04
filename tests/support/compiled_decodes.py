"""Compiles attention of decodes for an H200, with shared prefixes and without, and prints, a line for each
configuration, what the assembler says of registers that spill. The argument is the number of models.
"""

import re
import subprocess
import sys
import tempfile

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from punica_kernels.attention_tiles import AttentionShape
from punica_kernels.gpu.attention_config import block_d, triton_config
from punica_kernels.gpu.paged_attention import _paged_attention

_TYPES = {
    **dict.fromkeys(("out", "q", "keys", "values"), "*bf16"),
    **dict.fromkeys(("pages", "tiles", "counts"), "*i32"),
    **dict.fromkeys(("split_acc", "split_m", "split_l"), "*fp32"),
    **dict.fromkeys(("scale", "log2_soft_cap"), "fp32"),
}
#: Heads, kv heads and the size of a head: Gemma 2, Llama-2-7B, Llama-3.1-8B, Qwen 2.5 7B. The largest heads need most
#: registers.
_MODELS = ((16, 8, 256), (32, 32, 128), (32, 8, 128), (28, 4, 128))


def spills(heads: int, kv_heads: int, head_dim: int, *, shares_prefixes: bool) -> str:
    """Empty where the code is as it should be."""
    shape = AttentionShape.of(
        32,
        1,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
        shares_prefixes=shares_prefixes,
    )
    blocks = triton_config(shape, head_dim, 2)._asdict()
    num_warps = blocks.pop("num_warps")
    constants = {
        **{"TILE_WORDS": shape.tile_words, "HEAD_DIM": head_dim, "PAGE_SIZE": 16, "KV_HEADS": kv_heads},
        **{"GROUP": heads // kv_heads, "BLOCK_GROUP": shape.block_group, "BLOCK_M": shape.block_m},
        **{"BLOCK_D": block_d(head_dim), "LIVE_M": shape.live_m, "WINDOW": 0, "log2_soft_cap": None},
        **{"SHARES_PREFIXES": shares_prefixes, "PDL_TRIGGER": True, "PDL_WAIT": True},
        **blocks,
    }
    names = _paged_attention.arg_names
    signature = {name: "constexpr" if name in constants else _TYPES.get(name, "i32") for name in names}
    aligned = [name for name, kind in signature.items() if kind.startswith("*") or name.endswith("stride")]
    source = ASTSource(
        _paged_attention,
        signature,
        {(names.index(name),): value for name, value in constants.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": num_warps})
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(compiled.asm["ptx"])
        file.flush()
        assembler = [triton.knobs.nvidia.ptxas.path, "-v", "--gpu-name=sm_90a", "-o", "/dev/null", file.name]
        said = subprocess.run(assembler, capture_output=True, text=True, check=True, timeout=60).stderr
    return "; ".join(spill for spill in re.findall(r"\d+ bytes spill \w+", said) if not spill.startswith("0 "))


if __name__ == "__main__":
    lines = (
        spills(*model, shares_prefixes=shares) for model in _MODELS[: int(sys.argv[1])] for shares in (False, True)
    )
    sys.stdout.write("\n".join(lines) + "\n")
