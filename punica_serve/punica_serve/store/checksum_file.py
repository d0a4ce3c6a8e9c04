"""The checksums beside an adapter that this host has downloaded: its digest was right, so its reads need no SHA-256.

They are believed only in folders that nobody else can have written to; see docs/security.md.
"""

import os
import stat
from pathlib import Path

from punica_serve.process.private_files import open_private

_NAME = "checksums"
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def write_checksums(folder: Path, checksums: bytes) -> None:
    """Adds them to a downloaded adapter. Raises OSError."""
    with open_private(folder / _NAME, "wb") as file:
        file.write(checksums)


def trusted_checksums(folder: Path) -> bytes | None:
    """The checksums in an adapter's ``folder``; None if there are none, or others may have written there."""
    try:
        if all(_is_own(path) for path in (folder.parent, folder, *folder.iterdir())):
            return (folder / _NAME).read_bytes()
    except OSError:
        pass
    return None


def _is_own(path: Path) -> bool:
    found = path.lstat()
    return found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_MAY_WRITE and not stat.S_ISLNK(found.st_mode)
