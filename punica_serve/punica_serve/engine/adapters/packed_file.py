"""The file of a packed adapter: read as it is copied to a GPU, instead of hashed and packed again at every load.

A header of whole 4 KiB blocks, then chunks of a few layers each, first layers first, each with a checksum and aligned
to 4 KiB. A chunk has, for each group and each of its pages, these layers of A and of B. The SHA-256 of an adapter is
checked when its bytes come to the host; checksums of 128 bits (xxh3) guard what is read from then on against damage.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch import Tensor

from punica_serve.base_model.lora_layout import LORA_PAGE_RANKS
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters.packing import PackedAdapter
from punica_serve.protocol import AdapterRef

#: Raised with every change of this format, or of what packing makes.
_VERSION = 1
_MAGIC = b"PUNICA-PACKED\n"
_BLOCK_BYTES = 4096
#: Chunks are as many whole layers as come closest above it: small enough to be read side by side.
_CHUNK_BYTES = 4 << 20
#: Buffers of one system call; Linux takes 1024.
_MAX_BUFFERS = 1024
_MAX_HEADER_BYTES = 1 << 20


class PackedFileInvalid(Exception):
    """The file is damaged, or of another adapter, model or version. It is made again from the adapter's folder."""


class _Chunk(msgspec.Struct, frozen=True):
    offset: int
    num_bytes: int
    checksum: str


class _Header(msgspec.Struct, frozen=True):
    layout: str
    #: Of the adapter: its digest, and what its configuration means.
    adapter: str
    layers_per_chunk: int
    chunks: tuple[_Chunk, ...]


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """How a model's adapters are packed. Files of equal ``name`` have one layout."""

    name: str
    num_layers: int

    @classmethod
    def of(cls, model: ModelConfig, dtype: torch.dtype) -> "PackedLayout":
        groups = [(each.name, len(each.projections), each.in_features, each.out_offsets) for each in model.spec.groups]
        meaning = json.dumps([_VERSION, str(dtype), LORA_PAGE_RANKS, model.num_hidden_layers, groups])
        return cls(hashlib.sha256(meaning.encode()).hexdigest()[:32], model.num_hidden_layers)


def write_packed(descriptor: int, ref: AdapterRef, packed: PackedAdapter, layout: PackedLayout) -> None:
    """Writes a packed adapter to an empty file. Raises OSError."""
    layers_per_chunk = _layers_per_chunk(packed, layout.num_layers)
    chunks: list[_Chunk] = []
    parts = list(_parts(packed, layout.num_layers, layers_per_chunk))
    sizes = [sum(len(piece) for piece in pieces) for pieces in parts]
    offset = num_header_bytes = _aligned(len(_encode(_header(ref, layout, layers_per_chunk, _placeholders(sizes)))))
    for pieces, num_bytes in zip(parts, sizes, strict=True):
        chunks.append(_Chunk(offset, num_bytes, _checksum(pieces)))
        _write_all(descriptor, pieces, offset)
        offset += _aligned(num_bytes)
    header = _encode(_header(ref, layout, layers_per_chunk, tuple(chunks)))
    os.truncate(descriptor, offset)
    _write_all(descriptor, [memoryview(header.ljust(num_header_bytes, b"\0"))], 0)


def read_header(descriptor: int, ref: AdapterRef, layout: PackedLayout) -> _Header:
    """Raises PackedFileInvalid unless the file is whole, and this adapter's in this layout; OSError."""
    num_bytes = os.fstat(descriptor).st_size
    start = os.pread(descriptor, _BLOCK_BYTES, 0)
    prefix = len(_MAGIC) + 8
    if not start.startswith(_MAGIC) or len(start) < prefix:
        raise PackedFileInvalid("it does not begin as a packed adapter")
    length = int.from_bytes(start[len(_MAGIC) : prefix], "little")
    if not 16 <= length <= min(num_bytes - prefix, _MAX_HEADER_BYTES):
        raise PackedFileInvalid("it is cut short")
    body = os.pread(descriptor, length, prefix)
    if len(body) < length or xxhash.xxh3_128_digest(body[16:]) != body[:16]:
        raise PackedFileInvalid("its header is damaged")
    try:
        header = msgspec.msgpack.decode(body[16:], type=_Header)
    except msgspec.DecodeError as error:
        raise PackedFileInvalid(str(error)) from error
    if header.layout != layout.name or header.adapter != _meaning(ref):
        raise PackedFileInvalid("it is of another adapter or layout")
    if header.chunks and num_bytes != header.chunks[-1].offset + _aligned(header.chunks[-1].num_bytes):
        raise PackedFileInvalid("it is cut short")
    return header


def chunk_pieces(header: _Header, packed: PackedAdapter, layout: PackedLayout) -> list[tuple[_Chunk, list[memoryview]]]:
    """Where each chunk goes in the memory of ``packed``. Raises PackedFileInvalid if they don't fit."""
    parts = list(_parts(packed, layout.num_layers, header.layers_per_chunk))
    sizes = [sum(len(piece) for piece in pieces) for pieces in parts]
    if sizes != [chunk.num_bytes for chunk in header.chunks]:
        raise PackedFileInvalid("its chunks are not those of the layout")
    return list(zip(header.chunks, parts, strict=True))


def read_chunk(descriptor: int, chunk: _Chunk, pieces: list[memoryview]) -> None:
    """Reads one chunk into its places. Raises PackedFileInvalid if it is damaged; OSError."""
    offset = chunk.offset
    for buffers in _batches(pieces):
        offset += _read_all(descriptor, buffers, offset)
    if _checksum(pieces) != chunk.checksum:
        raise PackedFileInvalid("a chunk is damaged")


def _header(ref: AdapterRef, layout: PackedLayout, layers_per_chunk: int, chunks: tuple[_Chunk, ...]) -> _Header:
    return _Header(layout.name, _meaning(ref), layers_per_chunk, chunks)


def _placeholders(sizes: list[int]) -> tuple[_Chunk, ...]:
    """As long, encoded, as the chunks can be."""
    return tuple(_Chunk((1 << 63) - 1, (1 << 63) - 1, "0" * 32) for _ in sizes)


def _encode(header: _Header) -> bytes:
    body = msgspec.msgpack.encode(header)
    return _MAGIC + (len(body) + 16).to_bytes(8, "little") + xxhash.xxh3_128_digest(body) + body


def _meaning(ref: AdapterRef) -> str:
    """Names the adapter's bytes, ranks and scalings: what its packed form depends on."""
    meaning = json.dumps([ref.digest, sorted(ref.ranks.items()), list(ref.scalings)])
    return hashlib.sha256(meaning.encode()).hexdigest()


def _layers_per_chunk(packed: PackedAdapter, num_layers: int) -> int:
    return max(1, min(num_layers, -(-_CHUNK_BYTES * num_layers // max(packed.num_bytes, 1))))


def _parts(packed: PackedAdapter, num_layers: int, layers_per_chunk: int) -> Iterator[list[memoryview]]:
    """The pieces of memory of each chunk, in the order of the file."""
    raw = [_pages_of(part) for group in packed.groups.values() for part in (group.a, group.b)]
    for first in range(0, num_layers, layers_per_chunk):
        last = min(first + layers_per_chunk, num_layers)
        yield [page[first:last].data.cast("B") for pages in raw for page in pages]


def _pages_of(tensor: Tensor) -> list[npt.NDArray[np.uint8]]:
    """Each page as uint8 [layers, bytes]."""
    pages, layers = tensor.shape[:2]
    return list(tensor.view(torch.uint8).view(pages, layers, -1).numpy())


def _checksum(pieces: Iterable[memoryview]) -> str:
    state = xxhash.xxh3_128()
    for piece in pieces:
        state.update(piece)
    return state.hexdigest()


def _batches(pieces: list[memoryview]) -> Iterator[list[memoryview]]:
    for start in range(0, len(pieces), _MAX_BUFFERS):
        yield pieces[start : start + _MAX_BUFFERS]


def _read_all(descriptor: int, buffers: list[memoryview], offset: int) -> int:
    """Fills the buffers; returns their bytes. Raises PackedFileInvalid at the end of the file."""
    total = sum(map(len, buffers))
    done = os.preadv(descriptor, buffers, offset)
    while done < total:
        more = os.preadv(descriptor, _after(buffers, done), offset + done)
        if not more:
            raise PackedFileInvalid("it is cut short")
        done += more
    return total


def _write_all(descriptor: int, pieces: list[memoryview], offset: int) -> None:
    for buffers in _batches(pieces):
        total, done = sum(map(len, buffers)), 0
        while done < total:
            done += os.pwritev(descriptor, _after(buffers, done), offset + done)
        offset += total


def _after(buffers: list[memoryview], num_bytes: int) -> list[memoryview]:
    """What is left of the buffers."""
    left = []
    for buffer in buffers:
        if num_bytes < len(buffer):
            left.append(buffer[num_bytes:])
        num_bytes = max(0, num_bytes - len(buffer))
    return left


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _BLOCK_BYTES) * _BLOCK_BYTES
