"""Where the ranks of a group meet: a port that the leader's system chose, so that no old group holds it."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed import distributed_c10d

from punica_serve.base_model.rank import Rank
from punica_serve.engine.ranks.network_interface import LOOPBACK, listen_at
from punica_serve.engine.ranks.rank_loss import ExchangeFailed, RankLost
from punica_serve.engine.ranks.start_votes import StartVotes
from punica_serve.engine.ranks.torch_collectives import TorchCollectives
from punica_serve.errors import ConfigError
from punica_serve.errors.reasons import first_line

_INTERFACE_ENV = "GLOO_SOCKET_IFNAME"
#: The leader reaches its own store at once, but for a thread that must get a core.
_OWN_STORE_TIMEOUT_S = 30.0


def open_port(host: str, timeout_s: float) -> TCPStore:
    """The leader's store, at a free port; it serves the others for as long as it lives. ``host``: as they reach it.

    ``timeout_s``: of its waits for other ranks. It asks nobody for a key, so it listens at that address alone; torch's
    own socket would listen at all of them.
    """
    if dist.is_initialized():
        message = "this process has a group of ranks already, and can have one at a time"
        raise ConfigError(message, param="runner.devices")
    sock = listen_at(host, 0)
    port, timeout = sock.getsockname()[1], timedelta(seconds=_OWN_STORE_TIMEOUT_S)
    fd = sock.detach()
    store = TCPStore(host, port, is_master=True, wait_for_workers=False, timeout=timeout, master_listen_fd=fd)
    store.set_timeout(timedelta(seconds=timeout_s))
    return store


def reach_port(host: str, port: int, timeout_s: float) -> TCPStore:
    """The same store for another rank."""
    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=timeout_s))


def join(
    store: Store,
    device: torch.device,
    rank: Rank,
    timeout_s: float,
    check: Callable[[], None] = lambda: None,
    interface: str | None = LOOPBACK,
) -> TorchCollectives:
    """Makes the process group; all ranks must. ``timeout_s`` bounds every exchange, but not within CUDA graphs.

    ``check`` is called while this rank waits for the others to come; its errors end the wait. ``interface``: of this
    host, which gloo uses; None leaves it to gloo. A process can be in one group at a time. Raises RankLost for ranks
    that do not come, by name, and where torch can't join them.
    """
    if late := StartVotes(store, rank).meet("join", timeout_s, check):
        raise RankLost(f"{' and '.join(late)} did not come to where the ranks meet within {timeout_s:g} s")
    make_current(device)
    is_gpu = device.type == "cuda"
    try:
        with _on_interface(interface), _own_excepthook():
            dist.init_process_group(
                "nccl" if is_gpu else "gloo",
                store=store,
                rank=rank.index,
                world_size=rank.size,
                timeout=timedelta(seconds=timeout_s),
                device_id=device if is_gpu else None,
            )
            assert dist.group.WORLD is not None
            collectives = TorchCollectives(dist.group.WORLD, store)
            if is_gpu:
                _connect(collectives, device)
    except (ExchangeFailed, RuntimeError) as error:
        # Torch names groups by how many a process has begun: the next one's new ranks would look for another name.
        distributed_c10d._world.group_count = 0
        raise RankLost(f"the ranks could not join within {timeout_s:g} s: {first_line(error)}") from error
    return collectives


def _connect(collectives: TorchCollectives, device: torch.device) -> None:
    """Has NCCL connect the GPUs, which it leaves to the first exchange, on a stream that waits for no other."""
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        collectives.all_gather(torch.zeros(1, device=device))
        # Shares go between pairs of GPUs, which NCCL connects at their own first exchange.
        collectives.all_to_all(torch.zeros(collectives.rank.size, device=device))
    stream.synchronize()


def make_current(device: torch.device) -> None:
    """Makes a GPU the calling thread's current one, to which memory that it pins, and streams of libraries, belong."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def leave() -> None:
    """Ends this process's part of the group. On GPUs graphs with exchanges must be gone, and all ranks must leave."""
    if dist.is_initialized():
        dist.destroy_process_group()


def leave_if_lost(device: torch.device) -> None:
    """The same where other ranks are gone. On GPUs it would wait for them, so this process can't join another group."""
    if device.type == "cpu":
        leave()


@contextmanager
def _own_excepthook() -> Iterator[None]:
    """Keeps the process's hook for uncaught errors. Torch wraps it in one more with each group that begins."""
    hook = sys.excepthook
    try:
        yield
    finally:
        sys.excepthook = hook


@contextmanager
def _on_interface(name: str | None) -> Iterator[None]:
    """Has gloo use this interface, whatever the host's name resolves to, unless the user has chosen another."""
    if name is None or _INTERFACE_ENV in os.environ:
        yield
        return
    os.environ[_INTERFACE_ENV] = name
    try:
        yield
    finally:
        del os.environ[_INTERFACE_ENV]
