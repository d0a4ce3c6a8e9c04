"""What a device's memory is asked for at the start, and what is said when it does not have it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from punica_serve.errors import ConfigError

_GIB = 1 << 30


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
