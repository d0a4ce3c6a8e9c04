"""Opens a device at the start, and reports allocations that fail."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from punica_serve.engine.memory.available_memory import available_bytes
from punica_serve.errors import ConfigError
from punica_serve.errors.reasons import first_line
from punica_serve.numbers import gib

#: Parts of error texts in lower case: CUDA's, cuBLAS's and cuDNN's, torch's on a CPU, and for absurd sizes.
_OUT_OF_MEMORY_SIGNS = ("out of memory", "_alloc_failed", "allocat", "storage size")


def open_device(name: str) -> torch.device:
    """cpu or cuda:N, once a byte of it could be had. Raises ConfigError."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ConfigError(f"device {name!r} is neither cpu nor cuda:N", param="runner.devices")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        message = f"device {name!r} can't be used: {first_line(error)}; name a GPU that torch sees, or cpu"
        raise ConfigError(message, param="runner.devices") from error
    return device


@contextmanager
def reserving(
    what: str, num_bytes: int, device: torch.device, *, fix: str, param: str, count: int | None = None
) -> Iterator[None]:
    """Around an allocation: raises ConfigError about ``param`` with both sizes and the ``fix`` where it fails.

    ``count``: of equal parts that it has; the error tells how many of them fit.
    """
    free = free_bytes(device) if device.type == "cuda" else available_bytes()
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        fits = min(free * count // num_bytes, count - 1) if count else 0
        advice = f"{fix} to {fits}" if fits else fix
        reason = f" ({first_line(error)})" if device.type == "cuda" else ""
        message = f"{what} does not fit {device}: it takes {gib(num_bytes)}, {gib(free)} are free; {advice}{reason}"
        raise ConfigError(message, param=param) from error


def is_out_of_memory(error: Exception) -> bool:
    """Only torch's allocator on a GPU has an error type of its own; errors of CUDA (pinned memory, graphs), of its
    libraries and of a CPU are recognised by their text.
    """
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _OUT_OF_MEMORY_SIGNS)


def free_bytes(device: torch.device) -> int:
    """Free memory of a CUDA device, after torch's own unused blocks are released."""
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def unreserved_bytes(device: torch.device) -> int:
    """Free memory of a CUDA device besides torch's own unused blocks, which it keeps."""
    return torch.cuda.mem_get_info(device)[0]


def total_bytes(device: torch.device) -> int:
    """Memory of a CUDA device."""
    return torch.cuda.mem_get_info(device)[1]
