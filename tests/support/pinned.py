"""Whether a GPU reads host memory by itself: by what it does, for torch knows only of memory that it has pinned."""

import torch
from torch import Tensor

#: Clock cycles that the device is kept busy, far more than the host needs to fill what is copied: about half a second.
_BUSY_CYCLES = 1_000_000_000


def is_read_in_place(memory: Tensor) -> bool:
    """Whether a copy to the device is asynchronous and reads the memory only when its turn comes.

    A copy of pageable memory takes the values of the time of the call. ``memory`` is restored afterwards; its values
    must not all be 1.
    """
    before = memory.clone()
    target = torch.empty_like(memory, device="cuda")
    torch.cuda._sleep(_BUSY_CYCLES)
    target.copy_(memory, non_blocking=True)
    memory.fill_(1)
    torch.cuda.synchronize()
    is_late = bool(target.eq(1).all())
    memory.copy_(before)
    return is_late


def can_be_pinned(memory: Tensor) -> bool:
    """Whether it is not pinned yet: CUDA's driver refuses to do so twice."""
    cudart = torch.cuda.cudart()
    if cudart.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0) != cudart.cudaError.success:
        return False
    torch.cuda.check_error(cudart.cudaHostUnregister(memory.data_ptr()))
    return True
