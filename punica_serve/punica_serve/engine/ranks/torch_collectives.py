"""Exchanges through torch.distributed: gloo between CPUs, NCCL between GPUs."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store

from punica_serve.base_model.rank import Rank
from punica_serve.engine.ranks.rank_loss import ExchangeFailed
from punica_serve.errors.reasons import first_line
from punica_serve.models.collectives import Collectives

#: The newer name in torch.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


class TorchCollectives(Collectives):
    """A process group, and the store at which it met. Its timeout bounds every wait outside CUDA graphs.

    NCCL runs on the current stream, so a CUDA graph captures it as it captures kernels.
    """

    def __init__(self, group: dist.ProcessGroup, store: Store) -> None:
        self.group = group
        self.store = store
        self.rank = Rank(group.rank(), group.size())

    def empty(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
        """See ``Collectives.empty``."""
        return torch.empty(shape, dtype=dtype, device=device)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """See ``Collectives.all_reduce``. Raises ExchangeFailed for a rank that is gone or late."""
        with _exchanging():
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def all_gather(self, tensor: Tensor) -> Tensor:
        """See ``Collectives.all_gather``. Raises ExchangeFailed for a rank that is gone or late."""
        gathered = tensor.new_empty(self.rank.size, *tensor.shape)
        with _exchanging():
            _all_gather(gathered.flatten(0, 1) if tensor.dim() else gathered, tensor, group=self.group)
        return gathered

    def all_to_all(self, tensor: Tensor) -> Tensor:
        """See ``Collectives.all_to_all``. Raises ExchangeFailed for a rank that is gone or late."""
        received = torch.empty_like(tensor)
        with _exchanging():
            dist.all_to_all_single(received, tensor, group=self.group)
        return received


@contextmanager
def _exchanging() -> Iterator[None]:
    """Tells the errors of torch's exchanges from those of this rank's own work, which are RuntimeErrors too."""
    try:
        yield
    except RuntimeError as error:
        raise ExchangeFailed(f"an exchange with the other ranks has failed: {first_line(error)}") from error
