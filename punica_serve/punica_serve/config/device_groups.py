"""The devices of workers: one each, or a group of equal ones that serve one copy of the model together."""

import re
from collections.abc import Sequence

from punica_serve.protocol.runner import MAX_RANKS

_SEPARATOR = ","
#: Between the number of another host and a device there: "1/cuda:0". The first host's devices have no number.
_HOST_SEPARATOR = "/"


def ranks_of(device: str) -> tuple[str, ...]:
    """The devices of a worker's ranks, the leader's first: ("cuda:0", "cuda:1") of "cuda:0,cuda:1"."""
    return tuple(name.strip() for name in device.split(_SEPARATOR))


def group_of(ranks: Sequence[str]) -> str:
    """The name of a group as a worker's device."""
    return _SEPARATOR.join(ranks)


def place_of(rank: str) -> tuple[int, str]:
    """The number of a rank's host, 0 for the leader's, and its device there: (1, "cuda:0") of "1/cuda:0"."""
    host, _, device = rank.rpartition(_HOST_SEPARATOR)
    return int(host or 0), device


def on_hosts(group: str, num_hosts: int) -> str:
    """A group that has these devices on each of so many hosts: "cuda:0,1/cuda:0" of "cuda:0" on two."""
    own = ranks_of(group)
    others = [f"{host}{_HOST_SEPARATOR}{name}" for host in range(1, num_hosts) for name in own]
    return group_of([*own, *others])


def neighbours(device: str, size: int) -> str:
    """The group of ``size`` devices from this one on; a group that has its size already stays as it is."""
    kind, _, first = device.partition(":")
    if size == 1 or not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        return device
    numbers = range(int(first or 0), int(first or 0) + size)
    return group_of(["cpu" if kind == "cpu" else f"{kind}:{number}" for number in numbers])


def why_no_device(device: str) -> str | None:
    """Why a name can't be a worker's device; None if it can. Whether there is such a device, its host finds out."""
    ranks = ranks_of(device)
    if not all(re.fullmatch(r"cpu|simulated|cuda:(0|[1-9][0-9]*)", name) for name in ranks):
        return "must be cpu, cuda:N (such as cuda:0) or simulated, or a group such as 'cuda:0,cuda:1'"
    return why_no_group(ranks)


def why_no_group(ranks: Sequence[str]) -> str | None:
    """Why devices can't be a group; None if they can, or if it is a single one."""
    if len(ranks) > MAX_RANKS:
        return f"a group has at most {MAX_RANKS} devices, not {len(ranks)}"
    gpus = [name for name in ranks if name.startswith("cuda")]
    twice = next((name for name in gpus if gpus.count(name) > 1), None)
    if twice:
        return f"names {twice} twice; each rank of a group needs a GPU of its own"
    if len({place_of(name)[1].split(":")[0] for name in ranks}) > 1:
        return "mixes kinds of devices; group equal ones"
    if len(ranks) > 1 and ranks[0] == "simulated":
        return "simulated devices need no groups: the profile says how long steps take"
    return None


def grouped(devices: Sequence[str], size: int) -> tuple[str, ...]:
    """The devices of each worker: the devices as they are, or groups of ``size`` neighbours. Raises ValueError."""
    groups = tuple(devices) if size == 1 else _neighbours_of(devices, size)
    for group in groups:
        if reason := why_no_group(ranks_of(group)):
            raise ValueError(f"the group {group!r} {reason}")
    gpus = [rank for group in groups for rank in ranks_of(group) if rank.startswith("cuda")]
    if twice := next((gpu for gpu in gpus if gpus.count(gpu) > 1), None):
        raise ValueError(f"`devices` names {twice} twice; each worker needs GPUs of its own")
    _check_sizes(groups)
    return groups


def _check_sizes(groups: Sequence[str]) -> None:
    """Workers are alike: one profile says how long their steps take, and one batch size fits them all.

    Raises ValueError.
    """
    first = groups[0]
    if other := next((group for group in groups if len(ranks_of(group)) != len(ranks_of(first))), None):
        raise ValueError(
            f"`devices` has workers of different sizes: {first!r} has {len(ranks_of(first))}, {other!r} has"
            f" {len(ranks_of(other))}; make all groups equal, or run the others as a cluster of their own"
        )


def _neighbours_of(devices: Sequence[str], size: int) -> tuple[str, ...]:
    """Groups of ``size`` devices that are named one after the other. Raises ValueError."""
    if any(len(ranks_of(device)) > 1 for device in devices):
        raise ValueError("give groups in `devices` or their size in `tensor_parallel`, not both")
    if len(devices) % size:
        uneven = f"`tensor_parallel` of {size} does not divide {len(devices)} `devices`"
        raise ValueError(f"{uneven}; name a multiple of {size}, or change `tensor_parallel`")
    return tuple(group_of(devices[first : first + size]) for first in range(0, len(devices), size))
