"""Compares the sizes of weight files with their headers, so that a download cut short is refused before the start.

The format is safetensors': 8 bytes with the header's length, the header in JSON, then the tensors without gaps.
"""

import os
from pathlib import Path

import msgspec

from punica_serve.base_model.weight_files import weight_files
from punica_serve.errors import ModelRejected
from punica_serve.errors.reasons import why_unreadable

_NUM_LENGTH_BYTES = 8
#: safetensors reads no longer headers.
_MAX_HEADER_BYTES = 100_000_000


class _Tensor(msgspec.Struct, frozen=True):
    #: First byte and the one behind the last, from the header's end. `__metadata__`, which is no tensor, has none.
    data_offsets: tuple[int, int] = (0, 0)


def check_weight_sizes(folder: Path) -> None:
    """Reads headers alone. Raises ModelRejected, with the file's name, for a size that its header does not describe."""
    for file in weight_files(folder):
        _check(file)


def _check(file: Path) -> None:
    try:
        with file.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            num_header_bytes = int.from_bytes(opened.read(_NUM_LENGTH_BYTES), "little")
            header = opened.read(min(num_header_bytes, _MAX_HEADER_BYTES))
    except OSError as error:
        raise ModelRejected(f"{file} can't be read: {why_unreadable(file) or error}", param=file.name) from error
    try:
        described = _NUM_LENGTH_BYTES + num_header_bytes + _num_tensor_bytes(header)
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        what = f"{file} has {size:,} bytes, which begin with no safetensors header"
        raise ModelRejected(f"{what}; download it again", param=file.name) from error
    if size != described:
        what = f"{file} has {size:,} bytes, and its header describes {described:,}"
        raise ModelRejected(f"{what}; download it again", param=file.name)


def _num_tensor_bytes(header: bytes) -> int:
    """Raises ValueError, msgspec.DecodeError or RecursionError for no header of safetensors."""
    tensors = msgspec.json.decode(header, type=dict[str, _Tensor])
    return max((tensor.data_offsets[1] for tensor in tensors.values()), default=0)
