"""Chunks of a packed file: each is read and checked by itself, on any thread or in any process that has its memory.

Imports no torch, so a process that only reads starts quickly.
"""

from dataclasses import dataclass

import xxhash

from punica_serve.engine.adapters.range_reader import RangeReader

#: Bytes of the file's header, before the first chunk. Chunks begin at multiples of it.
BLOCK_BYTES = 4096


class PackedFileInvalid(Exception):
    """The file is damaged, or of another adapter, model or version. It is made again from the adapter's folder."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes of a packed file, and their place in the adapter's memory."""

    #: In the adapter's memory. The file has a header before it.
    place: range
    memory: memoryview
    checksum: bytes


def read_chunk(file: RangeReader, chunk: Chunk) -> None:
    """Reads one chunk into its place. Raises PackedFileInvalid if the file ends within; OSError."""
    if file.read(chunk.memory, BLOCK_BYTES + chunk.place.start) < len(chunk.memory):
        raise PackedFileInvalid("it is cut short")


def check_chunk(chunk: Chunk) -> None:
    """Raises PackedFileInvalid if a chunk that was read is damaged."""
    if xxhash.xxh3_128_digest(chunk.memory) != chunk.checksum:
        raise PackedFileInvalid("a chunk is damaged")
