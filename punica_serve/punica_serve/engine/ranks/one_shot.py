"""Small sums between GPUs by one kernel over memory that all of them map, instead of NCCL's protocols.

Each rank copies its tensor there, waits for the others, and reads all tensors in the order of ranks: the same bits on
each rank and at each repetition. It reads as many times its bytes as there are ranks, so large sums stay with NCCL.
"""

import torch
from torch import Tensor

from punica_serve.engine.ranks.torch_collectives import TorchCollectives
from punica_serve.errors import ConfigError
from punica_serve.models.collectives import Collectives


class OneShotCollectives:
    """``all_reduce`` of tensors of one dtype and at most some bytes in one shot; all else as ``library`` does it."""

    def __init__(self, library: TorchCollectives, max_bytes: int, dtype: torch.dtype, device: torch.device) -> None:
        """All ranks must. Raises RuntimeError if their GPUs can't map each other's memory."""
        from torch.distributed import _symmetric_memory as symmetric_memory

        self.rank = library.rank
        self._library = library
        self._max_bytes = max_bytes
        self._buffer = symmetric_memory.empty(max_bytes // dtype.itemsize, dtype=dtype, device=device)
        symmetric_memory.rendezvous(self._buffer, library.group)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """See ``Collectives.all_reduce``."""
        if tensor.nbytes > self._max_bytes or tensor.dtype != self._buffer.dtype:
            return self._library.all_reduce(tensor)
        name, flat = self._library.group.group_name, tensor.view(-1)
        total: Tensor = torch.ops.symm_mem.one_shot_all_reduce_copy(self._buffer, flat, "sum", name)
        return total.view(tensor.shape)

    def all_gather(self, tensor: Tensor) -> Tensor:
        """See ``Collectives.all_gather``."""
        return self._library.all_gather(tensor)


def exchanges_of(collectives: Collectives, max_bytes: int, dtype: torch.dtype, device: torch.device) -> Collectives:
    """The exchanges of a model in this dtype: in one shot up to ``max_bytes``, if that is not 0.

    Raises ConfigError if the GPUs of the group can't do that, or add up wrongly.
    """
    if not max_bytes or device.type != "cuda" or not isinstance(collectives, TorchCollectives):
        return collectives
    try:
        one_shot = OneShotCollectives(collectives, max_bytes, dtype, device)
        is_right = _adds_up(one_shot, max_bytes, dtype, device)
    except RuntimeError as error:
        raise _refusal(str(error).splitlines()[0]) from error
    if not is_right:
        raise _refusal("a sum was wrong")
    return one_shot


def _adds_up(one_shot: OneShotCollectives, max_bytes: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the largest sum is right: each rank gives its number plus one."""
    rank = one_shot.rank
    ones = torch.ones(max_bytes // dtype.itemsize, dtype=dtype, device=device)
    total = one_shot.all_reduce(ones * (rank.index + 1))
    return torch.equal(total, ones * (rank.size * (rank.size + 1) // 2))


def _refusal(reason: str) -> ConfigError:
    message = f"`engine.one_shot_bytes`: the GPUs of this group can't add up in one shot ({reason}); set it to 0"
    return ConfigError(message, param="engine.one_shot_bytes")
