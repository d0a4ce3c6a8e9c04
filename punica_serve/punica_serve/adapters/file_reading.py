"""Reads the files of an adapter's folder into memory that is used again, and names them in every error."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

import numpy as np
import numpy.typing as npt

from punica_serve.adapters.stream_hash import StreamHash
from punica_serve.errors import AdapterRejected

#: Bytes that are read before they are hashed. The first are few, so that hashing, which takes longest, begins at once.
_FIRST_BYTES, _BLOCK_BYTES = 2 << 20, 8 << 20
#: Larger files are rare, and their memory is freed after use.
_MAX_REUSED_BYTES = 256 << 20


class ReadBuffer:
    """Memory that is reused for one file after the other. Not thread-safe.

    Fresh memory costs as much as the reading itself, since the kernel clears every page.
    """

    def __init__(self) -> None:
        self._bytes: npt.NDArray[np.uint8] | None = None

    def take(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        if num_bytes > _MAX_REUSED_BYTES:
            return np.empty(num_bytes, dtype=np.uint8)
        if self._bytes is None or num_bytes > len(self._bytes):
            self._bytes = np.empty(num_bytes, dtype=np.uint8)
        return self._bytes[:num_bytes]


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Prefixes errors in a file, or in reading it, with the file's name."""
    try:
        yield
    except AdapterRejected as error:
        message, where = f"{path.name}: {error.message}", f"{path.parent}/"
        raise AdapterRejected(message, param=error.param or path.name, where=where) from error
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    except MemoryError as error:
        raise MemoryError(f"{path.name}: {error}") from error


def read_bytes(file: BufferedReader) -> bytes:
    """All of a small file."""
    content = np.empty(os.fstat(file.fileno()).st_size, dtype=np.uint8)
    return content[: file.readinto(content.data)].tobytes()


def read_and_hash(file: BufferedReader, content: npt.NDArray[np.uint8], stream: StreamHash) -> int:
    """Reads the file in blocks, so that the first is hashed while the others come. Returns its bytes.

    Not numpy's own reader: that takes a failing disk for the end of the file.
    """
    end = 0
    while end < len(content):
        num_bytes = file.readinto(content[end : end + (_BLOCK_BYTES if end else _FIRST_BYTES)].data)
        if not num_bytes:
            break
        end += num_bytes
        stream.fill(end)
    return end
