"""Memory of each GPU of a group that all of them map: torch's symmetric memory.

Torch numbers the messages of such mappings by how many the process has sent in its life, whatever the group. So ranks
whose processes have mapped different numbers of times would wait for messages that nobody sends: they compare these
numbers first. While it waits, no other thread of the process runs Python, so its waits are short.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store

from punica_serve.engine.ranks.torch_collectives import TorchCollectives

#: All ranks begin a mapping together, and it takes milliseconds. Shorter than the votes' and the watch's timeouts.
_TIMEOUT_S = 5.0


@dataclass(slots=True)
class _Mappings:
    count: int = 0


#: This process's, as long as it lives.
_own = _Mappings()


def num_mappings() -> int:
    """How often this process has mapped memory with others, or tried to."""
    return _own.count


def mapping_fault(counts: Sequence[int]) -> str | None:
    """Why the ranks of a group can't map memory together, by their ``num_mappings``; None if they can."""
    if len(set(counts)) == 1:
        return None
    rank = counts.index(max(counts))
    return (
        f"the process of rank {rank} has been in an earlier group, and torch maps memory only among processes that have"
        " done so equally often; start each group in a process of its own"
    )


def map_memory(collectives: TorchCollectives, num_bytes: int, device: torch.device) -> tuple[Tensor, Any]:
    """This rank's bytes, and torch's handle to those of all. All ranks must, after they have found no `mapping_fault`.

    Raises RuntimeError if their GPUs can't map each other's memory, or a rank does not come.
    """
    from torch.distributed import _symmetric_memory as symmetric_memory

    own = symmetric_memory.empty(num_bytes, dtype=torch.uint8, device=device)
    with mappings(collectives, 1):
        return own, symmetric_memory.rendezvous(own, collectives.group)


@contextmanager
def mappings(collectives: TorchCollectives, count: int) -> Iterator[None]:
    """Around so many mappings: counts them, and bounds their waits for the other ranks. As `map_memory` else."""
    _own.count += count
    with _timeout(collectives.store, _TIMEOUT_S):
        yield


def timeout_of(store: Any) -> timedelta:
    """The longest wait at a store. Torch's type hints do not know that stores tell it."""
    timeout: timedelta = store.timeout
    return timeout


@contextmanager
def _timeout(store: Store, timeout_s: float) -> Iterator[None]:
    """Bounds the waits at a store, which the group's own store uses."""
    before = timeout_of(store)
    store.set_timeout(timedelta(seconds=timeout_s))
    try:
        yield
    finally:
        store.set_timeout(before)
