"""Lists the tensors of weight files by their headers alone. Free of torch.

The format is safetensors': 8 bytes with the header's length, the header in JSON, then the tensors without gaps. The
file's size is compared with its header, so that a download cut short is refused before the start.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from punica_serve.base_model.weight_files import named_files, weight_files
from punica_serve.errors import ModelRejected
from punica_serve.errors.reasons import why_unreadable
from punica_serve.learned_types import learned

_NUM_LENGTH_BYTES = 8
#: safetensors reads no longer headers.
_MAX_HEADER_BYTES = 100_000_000

_Size = Annotated[int, msgspec.Meta(ge=0)]


class _Entry(msgspec.Struct, frozen=True):
    """A tensor in the header. `__metadata__`, which is no tensor, has no dtype."""

    dtype: str = ""
    shape: tuple[_Size, ...] = ()
    #: First byte and the one behind the last, from the header's end.
    data_offsets: tuple[_Size, _Size] = (0, 0)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file that has not been read, or a part of one."""

    path: Path
    #: Its name in the file.
    name: str
    #: In safetensors' words, such as BF16.
    dtype: str
    #: The whole tensor's shape.
    shape: tuple[int, ...]
    #: The part that is read, by dimension; empty: all of it.
    index: tuple[slice, ...] = ()


def list_weights(folder: Path) -> dict[str, StoredTensor]:
    """All tensors of a folder's weight files, by their names in the files.

    Raises ModelFileMissing, and ModelRejected, with the file's name and sizes, for one of another size than its header
    describes.
    """
    there = [path for path in named_files(folder) if os.path.isfile(path)]
    listed = {tensor.name: tensor for path in there for tensor in _list_file(path)}
    # Last: a file that was cut short is told first, since no other file will mend it.
    weight_files(folder)
    return listed


def _list_file(path: Path) -> Iterator[StoredTensor]:
    try:
        with path.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            num_header_bytes = int.from_bytes(opened.read(_NUM_LENGTH_BYTES), "little")
            header = opened.read(min(num_header_bytes, _MAX_HEADER_BYTES))
    except OSError as error:
        raise ModelRejected(f"{path} can't be read: {why_unreadable(path) or error}", param=path.name) from error
    if size < (least := _least_bytes(num_header_bytes)):
        message = f"{path} is cut short: it has {size:,} bytes, and its header alone ends at {least:,}"
        raise ModelRejected(f"{message}; download it again", param=path.name)
    try:
        entries = msgspec.json.decode(header, type=learned(dict[str, _Entry]))
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        what = f"{path} has {size:,} bytes, which begin with no safetensors header"
        raise ModelRejected(f"{what}; download it again", param=path.name) from error
    num_tensor_bytes = max((entry.data_offsets[1] for entry in entries.values()), default=0)
    if size != (described := _NUM_LENGTH_BYTES + num_header_bytes + num_tensor_bytes):
        told = "is cut short: it has" if size < described else "has"
        message = f"{path} {told} {size:,} bytes, and its header describes {described:,}"
        raise ModelRejected(f"{message}; download it again", param=path.name)
    return (StoredTensor(path, name, entry.dtype, entry.shape) for name, entry in entries.items() if entry.dtype)


def _least_bytes(num_header_bytes: int) -> int:
    """The size of the smallest file with such a header. 0 if safetensors reads no header of that length."""
    return _NUM_LENGTH_BYTES + num_header_bytes if num_header_bytes <= _MAX_HEADER_BYTES else 0
