"""The ways in which ranks can add up a tensor, each on a tensor of its own of a fixed size."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from punica_serve.errors import ConfigError

#: Adds up the ranks' tensors once, without a wait for the host.
Exchange = Callable[[], object]


def _library(device: torch.device, numel: int, dtype: torch.dtype) -> Exchange:
    """NCCL between GPUs, gloo between CPUs."""
    tensor = torch.zeros(numel, dtype=dtype, device=device)
    return lambda: dist.all_reduce(tensor)


def _one_shot(device: torch.device, numel: int, dtype: torch.dtype) -> Exchange:
    """Each rank reads the tensors of all and adds them up in the order of ranks."""
    tensor, group = _symmetric(device, numel, dtype)
    return lambda: torch.ops.symm_mem.one_shot_all_reduce(tensor, "sum", group)


def _one_shot_copy(device: torch.device, numel: int, dtype: torch.dtype) -> Exchange:
    """The same of a tensor that only its rank can read: what the engine does up to `engine.one_shot_bytes`."""
    buffer, group = _symmetric(device, numel, dtype)
    tensor = torch.zeros(numel, dtype=dtype, device=device)
    return lambda: torch.ops.symm_mem.one_shot_all_reduce_copy(buffer, tensor, "sum", group)


def _two_shot(device: torch.device, numel: int, dtype: torch.dtype) -> Exchange:
    """Each rank adds up its part of the tensors, then all read the parts."""
    tensor, group = _symmetric(device, numel, dtype)
    return lambda: torch.ops.symm_mem.two_shot_all_reduce_(tensor, "sum", group)


def _multimem(device: torch.device, numel: int, dtype: torch.dtype) -> Exchange:
    """The switch between the GPUs adds up, in an order of its own."""
    tensor, group = _symmetric(device, numel, dtype)
    return lambda: torch.ops.symm_mem.multimem_all_reduce_(tensor, "sum", group)


def _symmetric(device: torch.device, numel: int, dtype: torch.dtype) -> tuple[Tensor, str]:
    """A tensor that all ranks can read, and the name of their group."""
    from torch.distributed import _symmetric_memory as symmetric_memory

    assert dist.group.WORLD is not None
    tensor = symmetric_memory.empty(numel, dtype=dtype, device=device).zero_()
    symmetric_memory.rendezvous(tensor, dist.group.WORLD)
    return tensor, dist.group.WORLD.group_name


WAYS: dict[str, Callable[[torch.device, int, torch.dtype], Exchange]] = {
    "library": _library,
    "one_shot": _one_shot,
    "one_shot_copy": _one_shot_copy,
    "two_shot": _two_shot,
    "multimem": _multimem,
}

#: Needs no memory that several GPUs map.
ON_CPU = ("library",)
#: Multimem adds in no fixed order, and needs a switch that can, so it is measured only if asked for.
ON_GPUS = ("library", "one_shot", "one_shot_copy", "two_shot")


def parse_ways(names: str | None, *, on_gpu: bool) -> tuple[str, ...]:
    """Ways by name, separated by commas; None: those of the device. Raises ConfigError."""
    if names is None:
        return ON_GPUS if on_gpu else ON_CPU
    chosen = tuple(dict.fromkeys(name.strip() for name in names.split(",")))
    allowed = tuple(WAYS) if on_gpu else ON_CPU
    for name in chosen:
        if name not in allowed:
            where = "GPUs" if on_gpu else "CPUs"
            raise ConfigError(f"`--ways` names {name!r}; {where} have {', '.join(allowed)}", param="ways")
    return chosen
