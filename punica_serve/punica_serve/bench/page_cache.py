"""Brings a file into the page cache or takes it out, and shows how much of it is there; reads past the cache."""

import ctypes
import mmap
import os
import time
from contextlib import suppress

import numpy as np

_PIECE_BYTES = 16 << 20


def cached_share(descriptor: int) -> float | None:
    """The share of a file's pages that are in the page cache; None if the system does not tell."""
    num_pages = -(-os.fstat(descriptor).st_size // mmap.PAGESIZE)
    num_cached = _num_cached_pages(descriptor)
    return None if num_cached is None else num_cached / num_pages


def read_once(descriptor: int) -> None:
    """Brings a file into the page cache, as far as that has room. Raises OSError."""
    memory, done = mmap.mmap(-1, _PIECE_BYTES), 0
    while num_bytes := os.preadv(descriptor, [memory], done):
        done += num_bytes


def forget(descriptor: int) -> bool:
    """Takes the file out of the page cache. False if some of it is still there, or that can't be told."""
    if not hasattr(os, "posix_fadvise"):
        return False
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    return _num_cached_pages(descriptor) == 0


def sequential_rate(descriptor: int) -> float | None:
    """Bytes per second of one thread that reads large pieces past the page cache; None where that does not work."""
    size = os.fstat(descriptor).st_size
    memory = mmap.mmap(-1, _PIECE_BYTES)
    direct = -1
    with suppress(OSError, AttributeError):
        direct = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_DIRECT)
        memory[:: mmap.PAGESIZE] = bytes(_PIECE_BYTES // mmap.PAGESIZE)  # the system hands it out as it is touched
        done, started_s = 0, time.perf_counter()
        while done < size and (num_bytes := os.preadv(direct, [memory], done)):
            done += num_bytes
        os.close(direct)
        return done / (time.perf_counter() - started_s)
    if direct != -1:
        os.close(direct)
    return None


def _num_cached_pages(descriptor: int) -> int | None:
    """The file's pages that are in the page cache; None if the system does not tell."""
    size = os.fstat(descriptor).st_size
    found = np.zeros(-(-size // mmap.PAGESIZE), dtype=np.uint8)
    with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as mapped:
        place = np.frombuffer(mapped, dtype=np.uint8)
        address, vector = (ctypes.c_void_p(array.ctypes.data) for array in (place, found))
        error = ctypes.CDLL(None).mincore(address, ctypes.c_size_t(size), vector)
        del place
    return None if error else int(np.count_nonzero(found & 1))
