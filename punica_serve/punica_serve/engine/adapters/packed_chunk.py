"""Chunks of a packed file: each is read and checked by itself, on any thread or in any process that has its memory.

Imports no torch, so a process that only reads starts quickly.
"""

import time
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


def read_checked(file: RangeReader, chunk: Chunk, piece_bytes: int | None = None) -> float:
    """Reads a chunk into its place and checks it. Returns the seconds of its reads.

    Raises PackedFileInvalid if it is damaged or the file ends within, and OSError. ``piece_bytes`` are read and summed
    at a time, each giving the GIL up and taking it again; None, and a disk that is read directly: the whole chunk.
    """
    num_bytes = len(chunk.memory)
    if piece_bytes is None or file.is_direct:
        piece_bytes = num_bytes
    checksum, reads_s = xxhash.xxh3_128(), 0.0
    for start in range(0, num_bytes, piece_bytes):
        piece = chunk.memory[start : start + piece_bytes]
        begun_s = time.perf_counter()
        if file.read(piece, BLOCK_BYTES + chunk.place.start + start) < len(piece):
            raise PackedFileInvalid("it is cut short")
        reads_s += time.perf_counter() - begun_s
        checksum.update(piece)
    if checksum.digest() != chunk.checksum:
        raise PackedFileInvalid("a chunk is damaged")
    return reads_s
