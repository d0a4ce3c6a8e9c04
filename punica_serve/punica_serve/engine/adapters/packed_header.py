"""The header of a packed adapter's file: whose it is, and the checksums of its chunks, which lie behind it.

Imports no torch, so a process that only reads starts quickly.
"""

import msgspec
import xxhash

from punica_serve.engine.adapters.packed_chunk import BLOCK_BYTES, Chunk, PackedFileInvalid
from punica_serve.engine.adapters.range_reader import RangeReader
from punica_serve.learned_types import learned

#: The most threads that read one adapter. Its chunks are so many or a multiple, so none reads on while others idle.
MAX_READERS = 16
#: Larger chunks would be copied late; the header has room for so many.
_CHUNK_BYTES, _MAX_CHUNKS = 8 << 20, 8 * MAX_READERS
_MAGIC = b"PUNICA-PACKED\n"
_LENGTH_BYTES, _CHECKSUM_BYTES = 8, 16


class PackedName(msgspec.Struct, frozen=True, array_like=True):
    """Which adapter a file has, and how it is packed."""

    layout: str
    #: The adapter's digest, and the meaning of its configuration.
    adapter: str


class _Header(msgspec.Struct, frozen=True):
    layout: str
    adapter: str
    checksums: tuple[bytes, ...]


_decode_header = msgspec.msgpack.Decoder(learned(_Header)).decode


def encode_header(name: PackedName, checksums: tuple[bytes, ...]) -> bytes:
    """One block."""
    body = msgspec.msgpack.encode(_Header(name.layout, name.adapter, checksums))
    start = _MAGIC + len(body).to_bytes(_LENGTH_BYTES, "little") + xxhash.xxh3_128_digest(body) + body
    assert len(start) <= BLOCK_BYTES, f"the header of a packed adapter takes {len(start)} bytes"
    return start.ljust(BLOCK_BYTES, b"\0")


def open_chunks(file: RangeReader, name: PackedName, memory: memoryview) -> list[Chunk]:
    """The chunks to be read into ``memory``, those of ``chunk_ranges`` in their order.

    Raises PackedFileInvalid unless the file is whole, and has this name; OSError.
    """
    header = _decode(file.read_start(BLOCK_BYTES))
    if PackedName(header.layout, header.adapter) != name:
        raise PackedFileInvalid("it is of another adapter or layout")
    if file.num_bytes() != BLOCK_BYTES + len(memory):
        raise PackedFileInvalid("it is cut short, or too long")
    ranges = chunk_ranges(len(memory))
    if len(ranges) != len(header.checksums):
        raise PackedFileInvalid("its chunks are not those of the layout")
    return [
        Chunk(each, memory[each.start : each.stop], checksum)
        for each, checksum in zip(ranges, header.checksums, strict=True)
    ]


def chunk_ranges(num_bytes: int) -> list[range]:
    """Where the chunks of an adapter lie in its memory: equal shares of whole blocks, except for the last."""
    rounds = -(-num_bytes // (MAX_READERS * _CHUNK_BYTES))
    count = min(_MAX_CHUNKS, max(1, rounds) * MAX_READERS)
    share = -(-num_bytes // (count * BLOCK_BYTES)) * BLOCK_BYTES
    return [range(start, min(start + share, num_bytes)) for start in range(0, num_bytes, max(share, 1))]


def _decode(block: bytes) -> _Header:
    if not block.startswith(_MAGIC) or len(block) < BLOCK_BYTES:
        raise PackedFileInvalid("it does not begin as a packed adapter")
    length_end = len(_MAGIC) + _LENGTH_BYTES
    start = length_end + _CHECKSUM_BYTES
    body = block[start : start + int.from_bytes(block[len(_MAGIC) : length_end], "little")]
    if xxhash.xxh3_128_digest(body) != block[length_end:start]:
        raise PackedFileInvalid("its header is damaged")
    try:
        return _decode_header(body)
    except msgspec.DecodeError as error:
        raise PackedFileInvalid(str(error)) from error
