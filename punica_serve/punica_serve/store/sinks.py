"""What takes a body, or a part of one, piece by piece. Blocks."""

from pathlib import Path
from typing import Protocol

from punica_serve.store.unpack import check_file_size, unpack

#: Under this name an archive waits to be complete: no file of an adapter has it.
_ARCHIVE = ".archive"


class Sink(Protocol):
    def write(self, data: bytes) -> None: ...

    def finish(self) -> None:
        """The body is complete."""

    def close(self) -> None:
        """Whatever happened."""


class ArchiveSink:
    """Takes an archive, and unpacks it once it is complete."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._path = folder / _ARCHIVE
        self._file = self._path.open("xb")

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def finish(self) -> None:
        self._file.close()
        unpack(self._path, self._folder, self._max_bytes)
        self._path.unlink()

    def close(self) -> None:
        self._file.close()


class FileSink:
    """Takes one of an adapter's files."""

    def __init__(self, path: Path, max_adapter_bytes: int) -> None:
        self._name = path.name
        self._max_adapter_bytes = max_adapter_bytes
        self._num_bytes = 0
        self._file = path.open("xb")

    def write(self, data: bytes) -> None:
        self._num_bytes += len(data)
        check_file_size(self._name, self._num_bytes, self._max_adapter_bytes)
        self._file.write(data)

    def finish(self) -> None:
        self._file.close()

    def close(self) -> None:
        self._file.close()
