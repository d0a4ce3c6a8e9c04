"""Sums between GPUs by one kernel over memory that all of them map (torch's symmetric memory), instead of by NCCL.

In one shot each rank reads the tensors of all; in two shots it adds up its part of them and writes that to all. Both
add in the order of ranks: the same bits on each rank and at each repetition. Their kernels wait for the other ranks
without a limit of their own, as NCCL's do in CUDA graphs: who watches the group ends it as a whole.
"""

import torch
from torch import Tensor

from punica_serve.engine.ranks.exchange_choice import Way
from punica_serve.engine.ranks.mapped_memory import map_memory
from punica_serve.engine.ranks.torch_collectives import TorchCollectives

#: The types that torch's kernels add.
DTYPES = (torch.bfloat16, torch.float32)
#: Bytes that a thread of theirs reads at once.
_ALIGNMENT = 16


class SymmetricSums:
    """The sums of one group, over a buffer of each rank: one sum at a time, in one order on all ranks."""

    def __init__(self, collectives: TorchCollectives, num_bytes: int, device: torch.device) -> None:
        """All ranks must. Raises RuntimeError if their GPUs can't map each other's memory."""
        self._group_name = collectives.group.group_name
        self._buffer, _ = map_memory(collectives, num_bytes, device)

    def memory(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """The buffer's beginning as a tensor, to be filled for the next sum."""
        return self._buffer[: shape.numel() * dtype.itemsize].view(dtype).view(shape)

    def holds(self, tensor: Tensor) -> bool:
        """Whether it is the buffer's beginning."""
        return tensor.data_ptr() == self._buffer.data_ptr()

    def fits(self, num_bytes: int, dtype: torch.dtype) -> bool:
        return dtype in DTYPES and num_bytes <= self._buffer.nbytes and num_bytes % _ALIGNMENT == 0

    def add_up(self, part: Tensor, way: Way) -> Tensor:
        """The sum of the ranks' parts, each from ``memory``; in two shots, in place of them."""
        flat = part.view(-1)
        if way == "one_shot":
            flat = torch.ops.symm_mem.one_shot_all_reduce(flat, "sum", self._group_name)
        else:
            torch.ops.symm_mem.two_shot_all_reduce_(flat, "sum", self._group_name)
        return flat.view(part.shape)
