"""The safetensors format, read in place: 8 bytes of header length, a JSON header, and the tensors' bytes end to end.

The safetensors package copies every tensor out of the bytes it is given, or reads the file a second time; here one read
serves digest and tensors. What its parser checks is checked here too: the tensors tile the data without gap or overlap.
"""

import math
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from punica_serve.adapters.adapter import STORAGE_DTYPES, TensorPlace
from punica_serve.counted import counted
from punica_serve.errors import AdapterRejected

#: The header of an adapter for a model of 126 layers is 0.3 MB. No adapter is worth parsing a hundred times that.
MAX_HEADER_BYTES = 16 << 20

_LENGTH_BYTES = 8

_Size = Annotated[int, msgspec.Meta(ge=0)]


class _Entry(msgspec.Struct, frozen=True):
    """A tensor in the header. Offsets count from the header's end."""

    dtype: str
    shape: tuple[_Size, ...]
    data_offsets: tuple[_Size, _Size]


def split_header(file: npt.NDArray[np.uint8]) -> bytes:
    """The header of a whole file. Raises AdapterRejected."""
    if len(file) < _LENGTH_BYTES:
        raise AdapterRejected(f"it is truncated: {counted(len(file), 'byte')}")
    num_header_bytes = int.from_bytes(file[:_LENGTH_BYTES].tobytes(), "little")
    if num_header_bytes > MAX_HEADER_BYTES:
        raise AdapterRejected(f"its header claims {num_header_bytes} bytes; it is no safetensors file")
    end = _LENGTH_BYTES + num_header_bytes
    if len(file) < end:
        raise AdapterRejected(f"it is truncated: {len(file)} bytes, the header alone takes {end}")
    return file[_LENGTH_BYTES:end].tobytes()


def list_tensors(header: bytes, num_file_bytes: int) -> dict[str, TensorPlace]:
    """Where the tensors lie in a file of that size. Raises AdapterRejected, whose ``param`` is the tensor, if any."""
    start = _LENGTH_BYTES + len(header)
    entries = _parse_header(header)
    _check_tiling(entries, num_file_bytes - start)
    return {name: _place(name, entry, start) for name, entry in entries.items()}


def _parse_header(header: bytes) -> dict[str, _Entry]:
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        return {name: msgspec.json.decode(raw[name], type=_Entry) for name in raw if name != "__metadata__"}
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise AdapterRejected(f"its header is not a safetensors header: {error}") from error


def _check_tiling(entries: dict[str, _Entry], num_data_bytes: int) -> None:
    position = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        begin, end = entry.data_offsets
        if begin != position or end < begin:
            raise AdapterRejected(f"tensor `{name}` is at bytes {begin} to {end}, expected from {position}", param=name)
        position = end
    if position != num_data_bytes:
        raise AdapterRejected(
            f"it is truncated or has a tail: {counted(num_data_bytes, 'byte')} of tensors, expected {position}"
        )


def _place(name: str, entry: _Entry, start: int) -> TensorPlace:
    if entry.dtype not in STORAGE_DTYPES:
        raise AdapterRejected(f"tensor `{name}` is of {entry.dtype}; only F32, F16 and BF16 are served", param=name)
    begin, end = entry.data_offsets
    if end - begin != math.prod(entry.shape) * STORAGE_DTYPES[entry.dtype].itemsize:
        raise AdapterRejected(
            f"tensor `{name}` has {counted(end - begin, 'byte')} for {list(entry.shape)} of {entry.dtype}", param=name
        )
    return TensorPlace(entry.dtype, entry.shape, start + begin, start + end)
