"""Chunks of a packed file: each is read and checked by itself, on any thread or in any process that has its memory.

Imports no torch, so a process that only reads starts quickly.
"""

import time
from dataclasses import dataclass

import xxhash

from punica_serve.engine.adapters.range_reader import RangeReader

#: Bytes of the file's header, before the first chunk. Chunks begin at multiples of it.
BLOCK_BYTES = 4096
#: A core sums so much from its own cache, where it has just read it to.
_PIECE_BYTES = 512 << 10


class PackedFileInvalid(Exception):
    """The file is damaged, or of another adapter, model or version. It is made again from the adapter's folder."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes of a packed file, and their place in the adapter's memory."""

    #: In the adapter's memory. The file has a header before it.
    place: range
    memory: memoryview
    checksum: bytes


def read_checked(file: RangeReader, chunk: Chunk) -> float:
    """Does ``read_chunk`` and ``check_chunk`` piece by piece, with their errors. Returns the seconds of its reads.

    It takes the GIL for each piece. A disk is read in one.
    """
    num_bytes = len(chunk.memory)
    piece_bytes = num_bytes if file.is_direct else _PIECE_BYTES
    checksum, reads_s = xxhash.xxh3_128(), 0.0
    for start in range(0, num_bytes, piece_bytes):
        piece = chunk.memory[start : start + piece_bytes]
        begun_s = time.perf_counter()
        _read(file, piece, chunk.place.start + start)
        reads_s += time.perf_counter() - begun_s
        checksum.update(piece)
    _require(checksum.digest(), chunk)
    return reads_s


def read_chunk(file: RangeReader, chunk: Chunk) -> None:
    """Reads one chunk into its place. Raises PackedFileInvalid if the file ends within; OSError."""
    _read(file, chunk.memory, chunk.place.start)


def check_chunk(chunk: Chunk) -> None:
    """Raises PackedFileInvalid if a chunk that was read is damaged."""
    _require(xxhash.xxh3_128_digest(chunk.memory), chunk)


def _read(file: RangeReader, memory: memoryview, start: int) -> None:
    if file.read(memory, BLOCK_BYTES + start) < len(memory):
        raise PackedFileInvalid("it is cut short")


def _require(checksum: bytes, chunk: Chunk) -> None:
    if checksum != chunk.checksum:
        raise PackedFileInvalid("a chunk is damaged")
