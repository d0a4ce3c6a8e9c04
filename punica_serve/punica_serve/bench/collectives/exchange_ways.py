"""The ways in which ranks can add up a tensor, each on a tensor of its own of a fixed size."""

from collections.abc import Callable

import torch
import torch.distributed as dist

from punica_serve.engine.ranks.exchange_choice import Way
from punica_serve.engine.ranks.symmetric_sums import SymmetricSums
from punica_serve.errors import ConfigError

#: Adds up the ranks' tensors once, without a wait for the host.
Exchange = Callable[[], object]


def _library(device: torch.device, numel: int, dtype: torch.dtype) -> Exchange:
    tensor = torch.zeros(numel, dtype=dtype, device=device)
    return lambda: dist.all_reduce(tensor)


def _one_shot(device: torch.device, numel: int, dtype: torch.dtype) -> Exchange:
    return _engine_sum("one_shot", device, numel, dtype)


def _two_shot(device: torch.device, numel: int, dtype: torch.dtype) -> Exchange:
    return _engine_sum("two_shot", device, numel, dtype)


def _engine_sum(way: Way, device: torch.device, numel: int, dtype: torch.dtype) -> Exchange:
    """As the engine adds up what it has put into the memory of all."""
    assert dist.group.WORLD is not None
    sums = SymmetricSums(dist.group.WORLD, numel * dtype.itemsize, device)
    part = sums.memory(torch.Size([numel]), dtype).zero_()
    return lambda: sums.add_up(part, way)


def _multimem(device: torch.device, numel: int, dtype: torch.dtype) -> Exchange:
    """The switch between the GPUs adds up, in an order of its own."""
    from torch.distributed import _symmetric_memory as symmetric_memory

    assert dist.group.WORLD is not None
    group = dist.group.WORLD.group_name
    tensor = symmetric_memory.empty(numel, dtype=dtype, device=device).zero_()
    symmetric_memory.rendezvous(tensor, dist.group.WORLD)
    return lambda: torch.ops.symm_mem.multimem_all_reduce_(tensor, "sum", group)


WAYS: dict[str, Callable[[torch.device, int, torch.dtype], Exchange]] = {
    "gloo": _library,
    "nccl": _library,
    "one_shot": _one_shot,
    "two_shot": _two_shot,
    "multimem": _multimem,
}

ON_CPU = ("gloo",)
#: Multimem adds in no fixed order, and needs a switch that can, so it is measured only if asked for.
ON_GPUS = ("nccl", "one_shot", "two_shot")


def parse_ways(names: str | None, *, on_gpu: bool) -> tuple[str, ...]:
    """Ways by name, separated by commas; None: those of the device. Raises ConfigError."""
    if names is None:
        return ON_GPUS if on_gpu else ON_CPU
    chosen = tuple(dict.fromkeys(name.strip() for name in names.split(",")))
    allowed = (*ON_GPUS, "multimem") if on_gpu else ON_CPU
    for name in chosen:
        if name not in allowed:
            where = "GPUs" if on_gpu else "CPUs"
            raise ConfigError(f"`--ways` names {name!r}; {where} have {', '.join(allowed)}", param="ways")
    return chosen
