"""Folders and files that only the user of this process may read, whatever its umask."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Literal

FOLDER_MODE = 0o700
FILE_MODE = 0o600
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def make_private_folder(folder: Path) -> None:
    """Creates a folder and its missing parents; an existing folder keeps its mode. Raises OSError."""
    # mkdir(parents=True) would give the parents the umask's mode.
    for missing in reversed([each for each in (folder, *folder.parents) if not each.exists()]):
        missing.mkdir(mode=FOLDER_MODE, exist_ok=True)
    folder.mkdir(mode=FOLDER_MODE, exist_ok=True)


def open_private(path: Path, mode: Literal["wb", "xb"]) -> BinaryIO:
    """Opens a file for writing. Raises OSError."""
    return open(path, mode, opener=_opener)


def is_own(found: os.stat_result) -> bool:
    """Whether it is this user's, and nobody else may write it. A link is not: it leads elsewhere."""
    return found.st_uid == os.geteuid() and not found.st_mode & OTHERS_MAY_WRITE and not stat.S_ISLNK(found.st_mode)


def open_own_file(path: Path, folder: int | None = None) -> int:
    """A file descriptor for reading, which the caller closes. ``folder``: the open folder that ``path`` starts from.

    Raises OSError, and PermissionError for anything but a regular file of this user that nobody else may write.
    """
    # A pipe in its place would block an open without O_NONBLOCK, which files ignore.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        _require_own(path, os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _require_own(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise PermissionError(errno.EPERM, "it is not a regular file, so it is not trusted", str(path))
    if not is_own(found):
        raise PermissionError(errno.EPERM, "others may have written it, so it is not trusted", str(path))


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)
