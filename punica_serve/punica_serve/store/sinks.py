"""Sinks: they take a body, or a part of one, piece by piece. Blocking."""

from pathlib import Path
from typing import Protocol

from punica_serve.process.private_files import open_private
from punica_serve.store.unpack import unpack

#: The name of an incomplete archive, which no file of an adapter has.
_ARCHIVE = ".archive"


class Sink(Protocol):
    def write(self, data: bytes) -> None: ...

    def finish(self) -> None:
        """Called when the body is complete."""

    def close(self) -> None:
        """Always called, whatever happened."""


class ArchiveSink:
    """Takes an archive, and unpacks it when it is complete."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._path = folder / _ARCHIVE
        self._file = open_private(self._path, "xb")

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def finish(self) -> None:
        self._file.close()
        unpack(self._path, self._folder, self._max_bytes)
        self._path.unlink()

    def close(self) -> None:
        self._file.close()
