"""An adapter that a process of this host is downloading, as others of the host read it meanwhile.

Its weights grow from front to back. Its checksums come once its digest is right: what was read before is worth nothing
until it agrees with them. A download that ends otherwise removes the files. A folder that is renamed into the cache
meanwhile stays the same one.
"""

import os
from pathlib import Path
from typing import Self

from punica_serve.adapters.folder import CONFIG_NAME, WEIGHTS_NAME
from punica_serve.process.private_files import is_own, open_own_file
from punica_serve.store.checksum_file import CHECKSUMS_NAME


class IncomingAdapter:
    """The open files of one download. ``close`` it."""

    def __init__(self, folder: int, weights: int) -> None:
        """Takes over both descriptors."""
        self._folder = folder
        self._weights = weights

    @classmethod
    def open(cls, path: Path) -> Self | None:
        """None if no weights have come there yet, or anyone else may write there. Raises OSError."""
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        try:
            if is_own(os.fstat(folder)):
                return cls(folder, open_own_file(Path(WEIGHTS_NAME), folder))
        except (FileNotFoundError, PermissionError):
            pass
        except BaseException:
            os.close(folder)
            raise
        os.close(folder)
        return None

    def close(self) -> None:
        os.close(self._weights)
        os.close(self._folder)

    @property
    def is_gone(self) -> bool:
        """The files were removed: the download has failed, or the adapter was evicted since."""
        return os.fstat(self._weights).st_nlink == 0

    def read(self, memory: memoryview, offset: int) -> int:
        """Reads what has come of the weights from ``offset``. The bytes read; 0: no more have come. Raises OSError."""
        return os.preadv(self._weights, [memory], offset)

    def checksums(self) -> bytes | None:
        """See adapter_checksums; None before the digest of all files is known to be right. Raises OSError."""
        try:
            return self._content(CHECKSUMS_NAME)
        except FileNotFoundError:
            return None

    def config(self) -> bytes:
        """The whole configuration, once there are checksums. Raises OSError."""
        return self._content(CONFIG_NAME)

    def _content(self, name: str) -> bytes:
        with open(open_own_file(Path(name), self._folder), "rb") as file:
            return file.read()
