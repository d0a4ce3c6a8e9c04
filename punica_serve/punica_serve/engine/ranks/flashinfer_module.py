"""FlashInfer's compiled module of exchanges: whether a group can have it, whether it is there, and how it is made.

FlashInfer compiles it once for all models and groups of a host, which takes minutes; see ``flashinfer_compiler``.
"""

from importlib.util import find_spec
from typing import Any

import torch

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.cuda.flashinfer_compiler import Compilation, CompileJob, cache_folder, end_with_owner
from punica_serve.process.module_command import module_command

#: Capabilities, sizes of groups and types for which it has kernels.
_CAPABILITIES = (9, 10)
_NUM_RANKS = (2, 4, 8)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
#: Bytes of a row that each of its threads reads, and threads of a warp.
_THREAD_BYTES, _WARP = 16, 32
#: Blocks that share a row at most, and threads of a block that it prefers to more blocks.
_MAX_CLUSTER, _USUAL_BLOCK = 8, 128


def why_not(share: ModelConfig, dtype: torch.dtype, num_ranks: int, device: torch.device) -> str | None:
    """Why FlashInfer can't end the blocks of this model on this device; None if it can."""
    if find_spec("flashinfer") is None:
        return "FlashInfer is not installed (extra `gpu`)"
    if torch.cuda.get_device_capability(device)[0] not in _CAPABILITIES:
        return f"it has no kernel for {torch.cuda.get_device_name(device)}"
    return why_not_rows(share, dtype, num_ranks)


def why_not_rows(share: ModelConfig, dtype: torch.dtype, num_ranks: int) -> str | None:
    """The same for the rows of this model in groups of this size, whatever the device."""
    if num_ranks not in _NUM_RANKS:
        return f"it has no kernel for {num_ranks} ranks"
    if dtype not in DTYPES:
        return f"it has no kernel for {dtype}"
    if share.spec.norm_offset:
        return "its norms take weights of the rows' dtype, and this model's are in float32"
    if share.spec.block_norms.behind_attention or share.spec.block_norms.behind_mlp:
        return "it adds sums to the residual as they are, and this model norms them before"
    if not has_whole_warps(share.hidden_size * dtype.itemsize):
        return f"its norm takes no rows of {share.hidden_size} numbers, which are no whole warps"
    return None


def has_whole_warps(row_bytes: int) -> bool:
    """Whether each block of its launches has whole warps, without which its norm reads what no thread has written.

    It divides a row among up to 8 blocks, and doubles blocks that are small (``allreduce_fusion_kernel_launcher``).
    """
    threads, rest = divmod(row_bytes, _THREAD_BYTES)
    num_blocks = _MAX_CLUSTER
    while threads % num_blocks:
        num_blocks //= 2
    block = threads // num_blocks
    while block < _USUAL_BLOCK and num_blocks > 1:
        block, num_blocks = 2 * block, num_blocks // 2
    return rest == 0 and block > 0 and block % _WARP == 0


def job() -> CompileJob:
    """Compiles it, in a process of its own."""
    command = module_command("punica_serve.engine.ranks.flashinfer_module")
    return CompileJob(command, cache_folder() / "punica-serve-exchanges.lock")


def is_compiled() -> bool:
    """Whether it is there, so that a start need not wait for it."""
    return bool(_spec().is_compiled)


def compile_module() -> None:
    """Compiles it, which takes minutes. RuntimeError: it can't be compiled here."""
    Compilation(job().command).wait()


def _spec() -> Any:
    """FlashInfer's own description of the module."""
    from flashinfer.comm import gen_trtllm_comm_module

    return gen_trtllm_comm_module()


if __name__ == "__main__":
    end_with_owner()
    _spec().build(verbose=False)
