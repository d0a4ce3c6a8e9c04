"""Copies an adapter's pages to the device, some layers or some bytes at a time.

An adapter of rank 128 is a thousand pieces. Each copy that Python queues gives up the interpreter's lock and waits to
get it back from the step loop, which made such an adapter 20 times as slow as its link. So the pieces' addresses are
computed in numpy, and the driver takes all copies of a group of layers in one call (cuMemcpyBatchAsync).
"""

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

#: CU_MEMCPY_SRC_ACCESS_ORDER_STREAM: sources are read in the order of the stream.
_STREAM_ORDER = 1

#: Addresses and sizes, as the driver takes them.
Words = npt.NDArray[np.int64]


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes. Locations are hints for managed memory, which is not used here."""

    _fields_ = (
        ("source_order", ctypes.c_int),
        ("source_location", ctypes.c_int * 2),
        ("target_location", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    )


@dataclass(frozen=True, slots=True)
class PageSource:
    """Pages of a pool, [pages, layers, ...], and what they get: the pages of ``packed``, in their order."""

    pool: Tensor
    numbers: list[int]
    packed: Tensor


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Copies of contiguous bytes."""

    targets: Words
    sources: Words
    sizes: Words


class CopyBatch:
    """The copies of an adapter's pages. It keeps the memory of both sides."""

    def __init__(self, pages: Iterable[PageSource], times: int = 1) -> None:
        """``times``: how often each page is copied."""
        self._pages = tuple(pages)
        self._targets = _joined(_starts(each.pool, each.numbers) for each in self._pages).repeat(times)
        self._sources = _joined(_starts(each.packed, range(len(each.numbers))) for each in self._pages).repeat(times)
        self._sizes = _joined(_of_each(each, _page_bytes(each.pool)) for each in self._pages).repeat(times)
        layers = _joined(_of_each(each, each.pool.shape[1]) for each in self._pages).repeat(times)
        self._layer_bytes = self._sizes // layers

    def copy(self, layers: slice) -> None:
        """Copies these layers of all pages in the memory of a CPU."""
        _move(self._layers(layers))

    def queue(self, layers: slice, stream: torch.cuda.Stream) -> None:
        """Queues the copies on a GPU's stream. The sources must be pinned. Raises RuntimeError."""
        _queue(self._layers(layers), stream)

    def copy_part(self, first: int, last: int) -> None:
        """Copies what the pages get from the addresses ``first`` to ``last``, exclusive, in the memory of a CPU."""
        _move(self._part(first, last))

    def queue_part(self, first: int, last: int, stream: torch.cuda.Stream) -> None:
        """Queues the copies from these addresses, as ``queue`` does."""
        _queue(self._part(first, last), stream)

    def _layers(self, layers: slice) -> _Pieces:
        offsets = self._layer_bytes * layers.start
        sizes = self._layer_bytes * (layers.stop - layers.start)
        return _Pieces(self._targets + offsets, self._sources + offsets, sizes)

    def _part(self, first: int, last: int) -> _Pieces:
        starts = (first - self._sources).clip(0, self._sizes)
        sizes = (last - self._sources).clip(0, self._sizes) - starts
        some = sizes > 0
        return _Pieces((self._targets + starts)[some], (self._sources + starts)[some], sizes[some])


def _move(pieces: _Pieces) -> None:
    for target, source, size in zip(*_lists(pieces), strict=True):
        ctypes.memmove(target, source, size)


def _queue(pieces: _Pieces, stream: torch.cuda.Stream) -> None:
    if not len(pieces.sizes):  # the driver refuses a batch of none
        return
    handle, copy_batch = ctypes.c_void_p(stream.cuda_stream), _driver().batch
    if copy_batch is None:
        for target, source, size in zip(*_lists(pieces), strict=True):
            _check(_driver().one(ctypes.c_uint64(target), ctypes.c_void_p(source), ctypes.c_size_t(size), handle))
        return
    attributes, first = _Attributes(source_order=_STREAM_ORDER), ctypes.c_size_t(0)
    words = (pieces.targets, pieces.sources, pieces.sizes)
    pointers = (ctypes.c_void_p(each.ctypes.data) for each in words)
    count, one = ctypes.c_size_t(len(pieces.sizes)), ctypes.c_size_t(1)
    _check(copy_batch(*pointers, count, ctypes.byref(attributes), ctypes.byref(first), one, handle))


def _check(error: int) -> None:
    if error:
        raise RuntimeError(f"the CUDA driver can't queue copies: error {error}")


def _lists(pieces: _Pieces) -> tuple[list[int], list[int], list[int]]:
    return pieces.targets.tolist(), pieces.sources.tolist(), pieces.sizes.tolist()


def _starts(pages: Tensor, numbers: Iterable[int]) -> Words:
    """The addresses of these pages: by numpy, since every operation of torch takes microseconds of the step loop."""
    assert pages.is_contiguous(), "pages lie one after the other"
    return np.fromiter(numbers, dtype=np.int64) * _page_bytes(pages) + pages.data_ptr()


def _page_bytes(pages: Tensor) -> int:
    return pages.stride(0) * pages.element_size()


def _of_each(pages: PageSource, value: int) -> Words:
    return np.full(len(pages.numbers), value, dtype=np.int64)


def _joined(parts: Iterable[Words]) -> Words:
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])


@dataclass(frozen=True, slots=True)
class _Driver:
    one: Any
    #: None before CUDA 13, where every copy is queued by itself.
    batch: Any


@cache
def _driver() -> _Driver:
    library = ctypes.CDLL("libcuda.so.1")
    return _Driver(library.cuMemcpyHtoDAsync_v2, getattr(library, "cuMemcpyBatchAsync_v2", None))
