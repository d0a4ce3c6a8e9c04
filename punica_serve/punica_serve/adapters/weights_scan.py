"""Scans a weights file once from front to back: computes its digest and checks its values.

Only a small piece is in memory at a time, however large the file and its tensors are.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from punica_serve.adapters.adapter import STORAGE_DTYPES, HostTensor, TensorPlace
from punica_serve.errors import AdapterRejected

#: Bytes read at a time, a multiple of every element's size. hashlib and numpy release the GIL for each piece, so other
#: threads get to run. Larger pieces exceed the processor's cache and take twice as long.
PIECE_BYTES = 256 << 10

_MAX_FLOAT32 = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class ScannedTensor:
    """A tensor of the file, and the factor that the engine multiplies its values by."""

    name: str
    place: TensorPlace
    #: 1 for tensors that are not scaled.
    scaling: float
    #: The alpha behind the scaling, for messages.
    alpha: float


def scan_weights(file: BinaryIO, header: bytes, tensors: Iterable[ScannedTensor]) -> bytes:
    """The SHA-256 of a file that is positioned after its ``header`` and whose remaining bytes are the ``tensors``.

    Raises AdapterRejected, which names the tensor, for NaN, infinity, and values too large for their scaling.
    """
    hasher = hashlib.sha256(len(header).to_bytes(8, "little") + header)
    buffer = np.empty(PIECE_BYTES, dtype=np.uint8)
    for tensor in sorted(tensors, key=lambda each: each.place.begin):
        for piece in _pieces(file, tensor.place.end - tensor.place.begin, buffer):
            hasher.update(piece.data)
            _check(HostTensor(tensor.place.dtype, piece.view(STORAGE_DTYPES[tensor.place.dtype])), tensor)
    return hasher.digest()


def _pieces(file: BinaryIO, num_bytes: int, buffer: npt.NDArray[np.uint8]) -> Iterator[npt.NDArray[np.uint8]]:
    """The next bytes of the file in pieces; each overwrites the one before in ``buffer``."""
    while num_bytes:
        piece = buffer[:num_bytes]
        if file.readinto(piece.data) < len(piece):  # type: ignore[attr-defined]
            raise AdapterRejected("it was truncated while it was read")
        yield piece
        num_bytes -= len(piece)


def _check(values: HostTensor, tensor: ScannedTensor) -> None:
    if not values.is_finite():
        raise AdapterRejected(f"tensor `{tensor.name}` holds NaN or infinity", param=tensor.name)
    # The engine folds the scaling into B. A scaling beyond float32 can't even scale zero.
    if abs(tensor.scaling) > 1.0:
        largest = max(float(np.abs(values.float32()).max(initial=0.0)), 1.0)
        if abs(tensor.scaling) * largest > _MAX_FLOAT32:
            raise AdapterRejected(
                f"tensor `{tensor.name}` times its scaling of {tensor.scaling:g}, from an alpha of {tensor.alpha:g}, is"
                " too large for any number format",
                param="lora_alpha",
            )
