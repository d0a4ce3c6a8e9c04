"""The file of a packed adapter: read as it is copied to a GPU, instead of hashed and packed again at every load.

A header of 4 KiB, then the adapter's memory as it is, in a few chunks, each with a checksum and aligned to 4 KiB. The
SHA-256 of an adapter is checked when its bytes come to the host; checksums of 128 bits (xxh3) guard what is read from
then on against damage.

A chunk is one read and one checksum, while other chunks are read. More pieces, such as one for
each layer, would take as many times as long beside a busy step loop: each call releases the GIL and must get it back.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import torch
import xxhash

from punica_serve.base_model.lora_layout import LORA_PAGE_RANKS
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters.packed_chunk import BLOCK_BYTES, Chunk, PackedFileInvalid
from punica_serve.engine.adapters.range_reader import RangeReader
from punica_serve.protocol import AdapterRef

#: The most threads that read one adapter. Chunks come in multiples of it, so that none reads on while others idle.
MAX_READERS = 8
#: Chunks of most adapters: two for each thread, so that the first are copied while others are read.
MIN_CHUNKS = 2 * MAX_READERS
#: Larger adapters have more, up to what the header has room for: a core sums what it has just read from its caches, and
#: the first copy begins early.
_CHUNK_BYTES, _MAX_CHUNKS = 8 << 20, 16 * MAX_READERS
#: Raised with every change of this format, or of what packing makes.
_VERSION = 5
_MAGIC = b"PUNICA-PACKED\n"
_LENGTH_BYTES, _CHECKSUM_BYTES = 8, 16

Bytes = npt.NDArray[np.uint8]


class _Header(msgspec.Struct, frozen=True):
    layout: str
    #: The adapter's digest, and the meaning of its configuration.
    adapter: str
    checksums: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """How a model's adapters are packed, or a rank's share of them. Files of equal ``name`` have one layout."""

    name: str

    @classmethod
    def of(cls, model: ModelConfig, dtype: torch.dtype) -> "PackedLayout":
        groups = [
            (each.name, len(each.projections), len(each.lora_inputs), each.out_offsets)
            for each in model.spec.lora_groups
        ]
        rank = [model.rank.index, model.rank.size] if model.rank.size > 1 else []
        meaning = json.dumps([_VERSION, str(dtype), LORA_PAGE_RANKS, model.num_hidden_layers, groups, *rank])
        return cls(hashlib.sha256(meaning.encode()).hexdigest()[:32])


def write_packed(descriptor: int, ref: AdapterRef, memory: Bytes, layout: PackedLayout) -> None:
    """Writes the ``memory`` of a packed adapter to an empty file. Raises OSError."""
    checksums = []
    for start, chunk in _chunks(memory):
        checksums.append(xxhash.xxh3_128_digest(chunk))
        _write_all(descriptor, chunk, BLOCK_BYTES + start)
    header = _encode(_Header(layout.name, _meaning(ref), tuple(checksums)))
    _write_all(descriptor, memoryview(header), 0)


def open_chunks(file: RangeReader, ref: AdapterRef, memory: Bytes, layout: PackedLayout) -> list[Chunk]:
    """The chunks to be read into ``memory``.

    Raises PackedFileInvalid unless the file is whole, and this adapter's in this layout; OSError.
    """
    header = _decode(file.read_start(BLOCK_BYTES))
    if header.layout != layout.name or header.adapter != _meaning(ref):
        raise PackedFileInvalid("it is of another adapter or layout")
    if file.num_bytes() != BLOCK_BYTES + len(memory):
        raise PackedFileInvalid("it is cut short, or too long")
    places = list(_chunks(memory))
    if len(places) != len(header.checksums):
        raise PackedFileInvalid("its chunks are not those of the layout")
    return [Chunk(*place, checksum) for place, checksum in zip(places, header.checksums, strict=True)]


def _chunks(memory: Bytes) -> Iterator[tuple[int, memoryview]]:
    """Equal shares of whole blocks, except for the last, with their starts."""
    rounds = -(-len(memory) // (MAX_READERS * _CHUNK_BYTES))
    count = min(_MAX_CHUNKS, max(MIN_CHUNKS, rounds * MAX_READERS))
    share = -(-len(memory) // (count * BLOCK_BYTES)) * BLOCK_BYTES
    for start in range(0, len(memory), max(share, 1)):
        yield start, memory[start : start + share].data


def _encode(header: _Header) -> bytes:
    """One block."""
    body = msgspec.msgpack.encode(header)
    start = _MAGIC + len(body).to_bytes(_LENGTH_BYTES, "little") + xxhash.xxh3_128_digest(body) + body
    assert len(start) <= BLOCK_BYTES, f"the header of a packed adapter takes {len(start)} bytes"
    return start.ljust(BLOCK_BYTES, b"\0")


def _decode(block: bytes) -> _Header:
    if not block.startswith(_MAGIC) or len(block) < BLOCK_BYTES:
        raise PackedFileInvalid("it does not begin as a packed adapter")
    length_end = len(_MAGIC) + _LENGTH_BYTES
    start = length_end + _CHECKSUM_BYTES
    body = block[start : start + int.from_bytes(block[len(_MAGIC) : length_end], "little")]
    if xxhash.xxh3_128_digest(body) != block[length_end:start]:
        raise PackedFileInvalid("its header is damaged")
    try:
        return msgspec.msgpack.decode(body, type=_Header)
    except msgspec.DecodeError as error:
        raise PackedFileInvalid(str(error)) from error


def _meaning(ref: AdapterRef) -> str:
    """Names the adapter's bytes, ranks and scalings: what its packed form depends on."""
    meaning = json.dumps([ref.digest, sorted(ref.ranks.items()), list(ref.scalings)])
    return hashlib.sha256(meaning.encode()).hexdigest()


def _write_all(descriptor: int, content: memoryview, offset: int) -> None:
    done = 0
    while done < len(content):
        done += os.pwrite(descriptor, content[done:], offset + done)
