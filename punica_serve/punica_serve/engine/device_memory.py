"""A device at the start: whether it can be used, what its memory is asked for, and what is said if it can't be had."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from punica_serve.errors import ConfigError

_GIB = 1 << 30


def open_device(name: str) -> torch.device:
    """cpu or cuda:N, once a byte of it could be had. Raises ConfigError."""
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda"):
            raise ConfigError(f"device {name!r} is neither cpu nor cuda:N", param="runner.devices")
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {name!r} can't be used: {reason}", param="runner.devices") from error
    return device


@contextmanager
def reserving(what: str, num_bytes: int, device: torch.device, *, fix: str, param: str) -> Iterator[None]:
    """Around an allocation: raises ConfigError about ``param`` with both sizes and the ``fix`` where it fails."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
        reason = str(error).splitlines()[0] if str(error) else "out of memory"
        free = f", {gib(free_bytes(device))} are free" if device.type == "cuda" else ""
        message = f"{what} does not fit {device}: it takes {gib(num_bytes)}{free}; {fix} ({reason})"
        raise ConfigError(message, param=param) from error


def _is_out_of_memory(error: Exception) -> bool:
    """torch's own is a RuntimeError, and on a CPU a plain one, whose text alone tells."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return "allocat" in str(error) or "Storage size" in str(error)


def gib(num_bytes: int) -> str:
    """As people read it, to the tenth."""
    return f"{num_bytes / _GIB:.1f} GiB"


def free_bytes(device: torch.device) -> int:
    """Of a CUDA device, what nobody holds; torch's own unused blocks are given back first."""
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def total_bytes(device: torch.device) -> int:
    """Of a CUDA device."""
    return torch.cuda.mem_get_info(device)[1]
