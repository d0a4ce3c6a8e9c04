"""Copies an adapter's pages to the device, some layers at a time.

An adapter of rank 128 is a thousand pieces. Each copy that Python queues gives up the interpreter's lock and waits to
get it back from the step loop, which made such an adapter 20 times as slow as its link. So the pieces' addresses are
computed in numpy, and the driver takes all copies of a group of layers in one call (cuMemcpyBatchAsync).
"""

import ctypes
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

#: CU_MEMCPY_SRC_ACCESS_ORDER_STREAM: sources are read in the order of the stream.
_STREAM_ORDER = 1

Words = npt.NDArray[np.uint64]


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes. Locations are hints for managed memory, which is not used here."""

    _fields_ = (
        ("source_order", ctypes.c_int),
        ("source_location", ctypes.c_int * 2),
        ("target_location", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    )


class CopyBatch:
    """Pairs of a page on the device and its copy in host memory, each [layers, ...] and contiguous."""

    def __init__(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        self._pairs = tuple(pairs)
        self._targets = _words(target.data_ptr() for target, _ in self._pairs)
        self._sources = _words(source.data_ptr() for _, source in self._pairs)
        self._layer_bytes = _words(target[0].nbytes for target, _ in self._pairs)

    def copy(self, layers: slice) -> None:
        """Copies these layers of all pages, within the call on a CPU."""
        for target, source in self._pairs:
            target[layers].copy_(source[layers], non_blocking=True)

    def queue(self, layers: slice, stream: torch.cuda.Stream) -> None:
        """Queues the copies on a GPU's stream. The sources must be pinned. Raises RuntimeError."""
        copy_batch = _driver_call()
        if copy_batch is None or not self._pairs:  # the driver refuses a batch of none
            self.copy(layers)
            return
        targets = self._targets + self._layer_bytes * np.uint64(layers.start)
        sources = self._sources + self._layer_bytes * np.uint64(layers.start)
        sizes = self._layer_bytes * np.uint64(layers.stop - layers.start)
        attributes, first = _Attributes(source_order=_STREAM_ORDER), ctypes.c_size_t(0)
        pointers = (ctypes.c_void_p(words.ctypes.data) for words in (targets, sources, sizes))
        count, handle = ctypes.c_size_t(len(sizes)), ctypes.c_void_p(stream.cuda_stream)
        one = ctypes.c_size_t(1)
        error = copy_batch(*pointers, count, ctypes.byref(attributes), ctypes.byref(first), one, handle)
        if error:
            raise RuntimeError(f"the CUDA driver can't queue copies: error {error}")


def _words(values: Iterable[int]) -> Words:
    return np.fromiter(values, dtype=np.uint64)


@cache
def _driver_call() -> Any:
    """The driver's call; None before CUDA 13, where every copy is queued by itself."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuMemcpyBatchAsync_v2
    except (OSError, AttributeError):
        return None
