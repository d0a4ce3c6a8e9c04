"""The safetensors format, read in place: 8 bytes of header length, a JSON header, and the tensors' bytes end to end.

The safetensors package copies every tensor out of the bytes it is given, or reads the file a second time. Here one read
serves both digest and tensors. The same things are checked as in its parser: the tensors tile the data without gap or
overlap.
"""

import math
from typing import Annotated, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt

from punica_serve.adapters.adapter import STORAGE_DTYPES, TensorPlace
from punica_serve.errors import AdapterRejected
from punica_serve.learned_types import learned
from punica_serve.numbers import counted

#: A header for a 126-layer model is 0.3 MB. Parsing one takes ten times its size in memory.
MAX_HEADER_BYTES = 2 << 20

_LENGTH_BYTES = 8

_Size = Annotated[int, msgspec.Meta(ge=0)]


class _Entry(msgspec.Struct, frozen=True):
    """A tensor in the header. Offsets count from the header's end."""

    dtype: str
    shape: tuple[_Size, ...]
    data_offsets: tuple[_Size, _Size]


_decode_entry = msgspec.json.Decoder(learned(_Entry)).decode


def has_header(start: npt.NDArray[np.uint8]) -> bool:
    """Whether this first part of a file has all of its header. Raises AdapterRejected."""
    if len(start) < _LENGTH_BYTES:
        return False
    return len(start) >= _LENGTH_BYTES + header_length(start[:_LENGTH_BYTES].tobytes())


def split_header(file: npt.NDArray[np.uint8]) -> bytes:
    """The header of a file that has come that far. Raises AdapterRejected."""
    end = _header_end(file[:_LENGTH_BYTES].tobytes(), len(file))
    return file[_LENGTH_BYTES:end].tobytes()


def read_header(file: BinaryIO, num_file_bytes: int) -> bytes:
    """Reads only the header of a file of that size. Raises AdapterRejected."""
    end = _header_end(file.read(_LENGTH_BYTES), num_file_bytes)
    return file.read(end - _LENGTH_BYTES)


def _header_end(start: bytes, num_file_bytes: int) -> int:
    if len(start) < _LENGTH_BYTES:
        raise AdapterRejected(f"it is truncated to {counted(len(start), 'byte')}")
    end = _LENGTH_BYTES + header_length(start)
    if num_file_bytes < end:
        raise AdapterRejected(f"it is truncated: it has {num_file_bytes} bytes, and the header alone takes {end}")
    return end


def header_length(start: bytes) -> int:
    """The header's length, from the first 8 bytes. Raises AdapterRejected."""
    num_header_bytes = int.from_bytes(start, "little")
    if num_header_bytes > MAX_HEADER_BYTES:
        raise AdapterRejected(f"its header claims {num_header_bytes} bytes; it is not a safetensors file")
    return num_header_bytes


def list_tensors(header: bytes, num_file_bytes: int) -> dict[str, TensorPlace]:
    """The tensors' positions in a file of that size. Raises AdapterRejected, whose ``param`` is the tensor, if any."""
    start = _LENGTH_BYTES + len(header)
    entries = _parse_header(header)
    num_expected = _num_tiled(entries)
    if num_file_bytes - start != num_expected:
        raise AdapterRejected(
            f"it is truncated or has a tail: {counted(num_file_bytes - start, 'byte')} of tensors, expected"
            f" {num_expected}"
        )
    return {name: _place(name, entry, start) for name, entry in entries.items()}


class HeaderCheck:
    """Checks a file that arrives in pieces: its header once complete, then that the file is no longer than the header
    says.
    """

    def __init__(self) -> None:
        #: The data so far, until the header is complete.
        self._start = bytearray()
        #: The size stated by the header; None until the header is complete.
        self._num_file_bytes: int | None = None
        self._num_bytes = 0

    def feed(self, data: bytes) -> None:
        """Raises AdapterRejected."""
        self._num_bytes += len(data)
        if self._num_file_bytes is None:
            self._start += data
            self._find_header()
        if self._num_file_bytes is not None and self._num_bytes > self._num_file_bytes:
            raise AdapterRejected(
                f"it has extra data at the end: its header describes a file of {self._num_file_bytes} bytes"
            )

    def _find_header(self) -> None:
        if len(self._start) < _LENGTH_BYTES:
            return
        end = _LENGTH_BYTES + header_length(bytes(self._start[:_LENGTH_BYTES]))
        if len(self._start) < end:
            return
        entries = _parse_header(bytes(self._start[_LENGTH_BYTES:end]))
        self._start.clear()
        self._num_file_bytes = end + _num_tiled(entries)


def _parse_header(header: bytes) -> dict[str, _Entry]:
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        return {name: _decode_entry(raw[name]) for name in raw if name != "__metadata__"}
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise AdapterRejected(f"its header is not a safetensors header: {error}") from error


def _num_tiled(entries: dict[str, _Entry]) -> int:
    """Total bytes of the tensors, after checking that they lie end to end."""
    position = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        begin, end = entry.data_offsets
        if begin != position or end < begin:
            raise AdapterRejected(f"tensor `{name}` is at bytes {begin} to {end}, expected from {position}", param=name)
        position = end
    return position


def _place(name: str, entry: _Entry, start: int) -> TensorPlace:
    if entry.dtype not in STORAGE_DTYPES:
        raise AdapterRejected(f"tensor `{name}` has dtype {entry.dtype}; only F32, F16 and BF16 are served", param=name)
    begin, end = entry.data_offsets
    if end - begin != math.prod(entry.shape) * STORAGE_DTYPES[entry.dtype].itemsize:
        raise AdapterRejected(
            f"tensor `{name}` has {counted(end - begin, 'byte')} for {list(entry.shape)} of {entry.dtype}", param=name
        )
    return TensorPlace(entry.dtype, entry.shape, start + begin, start + end)
