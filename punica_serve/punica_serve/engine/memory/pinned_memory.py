"""The host memory of adapters: one stretch, pinned if a GPU copies from it.

torch's own pinned allocator rounds up to powers of two, which would waste a third of the memory on usual adapters, and
pinning during steps delays their launches. So all of it is allocated and pinned at once, at the start.
"""

import mmap
import os
from contextlib import suppress

import torch
from torch import Tensor

from punica_serve.engine.memory.numa import bring_to_gpu
from punica_serve.errors import ConfigError
from punica_serve.numbers import gib

_SETTING = "engine.host_cache_bytes"
#: CUDA's driver pins whole huge pages and refuses one that is pinned already, as a neighbour's may be: ours are whole.
_HUGE_PAGE_BYTES = 2 << 20


class HostMemory:
    """``bytes``: uint8 [num_bytes], aligned to huge pages. Ordinary memory, handed out by the system as it is used."""

    #: Whether all of it was handed out at once.
    is_whole = False

    def __init__(self, num_bytes: int, *, is_shared: bool = False) -> None:
        """``is_shared``: processes that inherit ``fd`` can map the same memory (Linux alone)."""
        #: The file that other processes map; -1 if the memory is not shared.
        self.fd = -1
        try:
            if is_shared:
                self.fd = os.memfd_create("punica-host-memory")
                os.ftruncate(self.fd, num_bytes + 2 * _HUGE_PAGE_BYTES)
            self._mapping = mmap.mmap(self.fd, num_bytes + 2 * _HUGE_PAGE_BYTES)
        except (OSError, ValueError, OverflowError) as error:
            self._close_file()
            message = f"`{_SETTING}` of {gib(num_bytes)} can't be had: {error}; lower it"
            raise ConfigError(message, param=_SETTING) from error
        with suppress(AttributeError, OSError):  # only some systems know huge pages; they are sooner pinned
            self._mapping.madvise(mmap.MADV_HUGEPAGE)
        mapped = torch.frombuffer(self._mapping, dtype=torch.uint8)
        start = -mapped.data_ptr() % _HUGE_PAGE_BYTES
        #: Where ``bytes`` starts in the file.
        self.offset = start
        self.bytes: Tensor = mapped[start : start + num_bytes]

    @property
    def is_shared(self) -> bool:
        return self.fd != -1

    def file_offset(self, part: Tensor) -> int | None:
        """Where a contiguous part of ``bytes`` starts in the file; None for other memory, or without a file."""
        start = part.data_ptr() - self.bytes.data_ptr()
        is_part = self.is_shared and 0 <= start <= len(self.bytes) - part.nbytes
        return self.offset + start if is_part else None

    def pin(self) -> None:
        """Makes it fit for copies to its device. A CPU reads any memory."""

    def close(self) -> None:
        """Gives back what is more than memory. The bytes stay readable as long as anyone holds them."""
        self._close_file()

    def _close_file(self) -> None:
        if self.is_shared:
            os.close(self.fd)
            self.fd = -1


class PinnedMemory(HostMemory):
    """Memory that a GPU reads at full speed, beside whatever else runs, once it is pinned."""

    is_whole = True

    def __init__(self, num_bytes: int, device: torch.device, *, is_shared: bool = False) -> None:
        """Allocates on the NUMA node of the ``device``, where the system says which that is."""
        super().__init__(num_bytes, is_shared=is_shared)
        self._device = device
        self._is_pinned = False
        bring_to_gpu(self.bytes, device)
        # Pinning takes page after page; touching them first does so on all of torch's threads.
        self.bytes[:: mmap.PAGESIZE].zero_()

    def pin(self) -> None:
        """Raises ConfigError if the system refuses it."""
        num_bytes = len(self.bytes)
        if not num_bytes:
            return
        try:
            with torch.cuda.device(self._device):
                torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(self.bytes.data_ptr(), num_bytes, 0))
        except RuntimeError as error:
            self._close_file()
            message = f"`{_SETTING}` of {gib(num_bytes)} can't be pinned: {error}; lower it, or raise `ulimit -l`"
            raise ConfigError(message, param=_SETTING) from error
        self._is_pinned = True

    def close(self) -> None:
        """Unpins. No copy from here may be under way."""
        super().close()
        if self._is_pinned:
            self._is_pinned = False
            torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(self.bytes.data_ptr()))


def allocate_host_memory(num_bytes: int, device: torch.device, *, is_shared: bool = False) -> HostMemory:
    """Memory to copy to that device from, once it is pinned. Raises ConfigError if it can't be had."""
    if device.type == "cpu":
        return HostMemory(num_bytes, is_shared=is_shared)
    return PinnedMemory(num_bytes, device, is_shared=is_shared)


def open_host_memory(num_bytes: int, device: torch.device, *, is_shared: bool = False) -> HostMemory:
    """The same, pinned."""
    memory = allocate_host_memory(num_bytes, device, is_shared=is_shared)
    memory.pin()
    return memory
