"""The ways in which ranks can add up a tensor, and end a layer's block with it, each on tensors of a fixed size."""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import torch
import torch.distributed as dist
from torch import Tensor

from punica_kernels.block_end import BlockEnd
from punica_serve.engine.ranks.chosen_collectives import ChosenCollectives
from punica_serve.engine.ranks.exchange_choice import WAYS as SUMS
from punica_serve.engine.ranks.exchange_choice import ExchangeChoice, LayerWay, Way
from punica_serve.engine.ranks.flashinfer_module import is_compiled
from punica_serve.engine.ranks.flashinfer_norm import FlashInferNorm
from punica_serve.engine.ranks.mapped_memory import map_memory
from punica_serve.engine.ranks.symmetric_sums import SymmetricSums
from punica_serve.engine.ranks.torch_collectives import TorchCollectives
from punica_serve.errors import ConfigError

#: Adds up the ranks' tensors once, without a wait for the host.
Exchange = Callable[[], object]
_MakeExchange = Callable[[TorchCollectives, torch.device, int, torch.dtype], Exchange]

#: Llama-2-7B's hidden size, where the tensor has as many numbers.
_WIDTH = 4096
#: Partial sums of a projection, as the engine's kernel makes of a decode's few rows.
_SPLITS = 2


def _library(collectives: TorchCollectives, device: torch.device, numel: int, dtype: torch.dtype) -> Exchange:
    tensor = torch.zeros(numel, dtype=dtype, device=device)
    return lambda: collectives.all_reduce(tensor)


def _symmetric(
    way: Way, collectives: TorchCollectives, device: torch.device, numel: int, dtype: torch.dtype
) -> Exchange:
    """As the engine adds up what it has put into the memory of all."""
    sums = SymmetricSums(collectives, numel * dtype.itemsize, device)
    part = sums.memory(torch.Size([numel]), dtype).zero_()
    return lambda: sums.add_up(part, way)


def _multimem(collectives: TorchCollectives, device: torch.device, numel: int, dtype: torch.dtype) -> Exchange:
    """The switch between the GPUs adds up, in an order of its own."""
    group = collectives.group.group_name
    memory, _ = map_memory(collectives, numel * dtype.itemsize, device)
    tensor = memory.zero_().view(dtype)
    return lambda: torch.ops.symm_mem.multimem_all_reduce_(tensor, "sum", group)


def _with_norm(
    way: Way | None,
    layer_way: LayerWay,
    collectives: TorchCollectives,
    device: torch.device,
    numel: int,
    dtype: torch.dtype,
) -> Exchange:
    """As the engine ends a block: parts and LoRA's delta summed, exchanged, added to the residual, normed.

    Unfused: in three kernels, of which one sums over ranks by ``way``.
    """
    num_rows = max(1, numel // _WIDTH)
    width = numel // num_rows
    num_bytes = num_rows * width * dtype.itemsize
    choice = ExchangeChoice(((num_bytes, way),) if way else (), ((num_bytes, layer_way),))
    flashinfer = None
    if layer_way == FLASHINFER:
        # It takes seconds to import, and a mapping does not wait for them.
        assert is_compiled()
        dist.barrier(collectives.group)
        flashinfer = FlashInferNorm(collectives, num_bytes, width, dtype, device)
    chosen = ChosenCollectives(collectives, choice, width, dtype, device, flashinfer)
    dist.barrier(collectives.group)

    def zeros(*shape: int, of: torch.dtype = dtype) -> Tensor:
        return torch.zeros(*shape, dtype=of, device=device)

    out, residual, delta = (zeros(num_rows, width) for _ in range(3))
    x, weight = zeros(_SPLITS, num_rows, width, of=torch.float32), zeros(width)
    end = BlockEnd(out, x, residual, weight, 1e-6, delta)
    return lambda: chosen.add_rms_norm(end, pdl=False)


def with_norm(way: str) -> str:
    """The name of a way to sum over ranks when it is measured with what the engine does before and behind it."""
    return f"{way}_norm"


#: The one kernel that does all of that, and FlashInfer's, behind one that sums the parts.
FUSED: LayerWay = "fused"
FLASHINFER: LayerWay = "flashinfer"

WAYS: dict[str, _MakeExchange] = {
    "gloo": _library,
    "nccl": _library,
    "one_shot": partial(_symmetric, "one_shot"),
    "two_shot": partial(_symmetric, "two_shot"),
    "multimem": _multimem,
    **{with_norm(way): partial(_with_norm, way, "unfused") for way in SUMS},
    **{way: partial(_with_norm, None, way) for way in (FUSED, FLASHINFER)},
}

ON_CPU = ("gloo",)
#: Those of the second table.
IN_TURN = tuple(map(with_norm, SUMS))
WITH_NORM = (*IN_TURN, FUSED, FLASHINFER)
#: Multimem adds in no fixed order, and needs a switch that can, so it is measured only if asked for.
ON_GPUS = (*SUMS, *WITH_NORM)


def parse_ways(names: str | None, *, on_gpu: bool) -> tuple[str, ...]:
    """Ways by name, separated by commas; None: those of the device. Raises ConfigError."""
    if names is None:
        missing = () if find_spec("flashinfer") else (FLASHINFER,)
        return tuple(way for way in ON_GPUS if way not in missing) if on_gpu else ON_CPU
    chosen = tuple(dict.fromkeys(name.strip() for name in names.split(",")))
    allowed = (*ON_GPUS, "multimem") if on_gpu else ON_CPU
    for name in chosen:
        if name not in allowed:
            where = "GPUs" if on_gpu else "CPUs"
            raise ConfigError(f"`--ways` names {name!r}; {where} have {', '.join(allowed)}", param="ways")
    return chosen
