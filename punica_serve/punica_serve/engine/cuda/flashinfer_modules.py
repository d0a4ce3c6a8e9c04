"""FlashInfer's compiled kernels: whether they can be had, whether they are there, and how they are made.

FlashInfer compiles a kernel for each combination of dtype, head size, window and soft cap, once, which takes a minute
or more; the result stays in its cache folder (FLASHINFER_WORKSPACE_BASE, the home folder by default).
"""

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from punica_serve.engine.cuda.flashinfer_compiler import Compilation, CompileJob, cache_folder, end_with_owner
from punica_serve.process.module_command import module_command

#: Head sizes that its kernels for Hopper (fa3) have.
_HEAD_DIMS = (64, 128, 256)
_HOPPER = 9


@dataclass(frozen=True, slots=True)
class Fa3Module:
    """The kernels of one kind of layer."""

    dtype: torch.dtype
    head_dim: int
    #: Tokens that a row sees, itself the last of them; None sees the whole context.
    window: int | None
    #: Zero leaves the scores as they are.
    soft_cap: float

    @property
    def job(self) -> CompileJob:
        """Compiles it, in a process of its own."""
        kind = f"{self.dtype}".removeprefix("torch.")
        flags = [kind, f"{self.head_dim}", f"{int(self.window is not None)}", f"{int(self.soft_cap > 0)}"]
        command = module_command("punica_serve.engine.cuda.flashinfer_modules", *flags)
        return CompileJob(command, cache_folder() / f"punica-serve-{'-'.join(flags)}.lock")


def why_not(module: Fa3Module, device: torch.device) -> str | None:
    """Why FlashInfer can't serve these layers on this device; None if it can."""
    if find_spec("flashinfer") is None:
        return "FlashInfer is not installed (extra `gpu`)"
    if torch.cuda.get_device_capability(device)[0] != _HOPPER:
        return f"its kernels for prompts need a Hopper GPU, and {torch.cuda.get_device_name(device)} is none"
    if module.dtype not in (torch.bfloat16, torch.float16):
        return f"it has no kernel for {module.dtype}"
    if module.head_dim not in _HEAD_DIMS:
        return f"it has no kernel for heads of {module.head_dim}"
    return None


def is_compiled(module: Fa3Module) -> bool:
    """Whether the kernels are there, so that a start need not wait for them."""
    return bool(_spec(module).is_compiled)


def compile_module(module: Fa3Module) -> None:
    """Compiles the kernels, which takes a minute or more. RuntimeError: they can't be compiled here."""
    Compilation(module.job.command).wait()


def _spec(module: Fa3Module) -> Any:
    """FlashInfer's own description of the kernels."""
    from flashinfer.jit.attention import gen_batch_prefill_module

    dtypes = (module.dtype, module.dtype, module.dtype, torch.int32)
    sizes = (module.head_dim, module.head_dim)
    no_rotary, no_fp16_scores = 0, False
    return gen_batch_prefill_module(
        "fa3", *dtypes, *sizes, no_rotary, module.window is not None, module.soft_cap > 0, no_fp16_scores
    )


def main(arguments: list[str]) -> None:
    """Compiles one module: dtype, head size, and 1 or 0 for window and soft cap."""
    dtype, head_dim, window, soft_cap = arguments
    module = Fa3Module(getattr(torch, dtype), int(head_dim), 1 if int(window) else None, float(soft_cap))
    _spec(module).build(verbose=False)


if __name__ == "__main__":
    end_with_owner()
    main(sys.argv[1:])
