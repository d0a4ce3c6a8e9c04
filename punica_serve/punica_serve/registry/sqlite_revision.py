"""The revision of SQLite's file, read without an event loop: a poll takes one switch of threads and not a dozen."""

import os
import sqlite3
from pathlib import Path
from typing import NamedTuple

#: A file, whatever its name: device and inode.
FileId = tuple[int, int]


class FileRevision(NamedTuple):
    """Differs after each change of the registry."""

    file: FileId
    revision: int


def file_id(path: Path) -> FileId | None:
    """Which file is at a path; None if there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


class RevisionReader:
    """Has a connection to the file at a path, and waits for no lock. May be used on any thread, by one at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._file: FileId | None = None

    def read(self) -> FileRevision | None:
        """Returns the revision, or None if the file does not tell it."""
        try:
            return self._read()
        except sqlite3.Error:
            self.close()
            return None

    def close(self) -> None:
        """Idempotent."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._file = None

    def _read(self) -> FileRevision | None:
        file = file_id(self._path)
        if file is None:
            return None
        if self._connection is None or file != self._file:
            self.close()
            # SQLite makes no file in this mode. A path may have characters that mean something in a URI.
            self._connection = sqlite3.connect(
                f"{self._path.absolute().as_uri()}?mode=rw", uri=True, timeout=0.0, check_same_thread=False
            )
            self._file = file
        row = self._connection.execute("SELECT revision FROM counter").fetchone()
        return FileRevision(file, row[0]) if row else None
