"""Folders and files that only the user of this process may read, whatever its umask."""

import os
from pathlib import Path
from typing import BinaryIO, Literal

FOLDER_MODE = 0o700
FILE_MODE = 0o600


def make_private_folder(folder: Path) -> None:
    """Creates a folder and its missing parents; an existing folder keeps its mode. Raises OSError."""
    # mkdir(parents=True) would give the parents the umask's mode.
    for missing in reversed([each for each in (folder, *folder.parents) if not each.exists()]):
        missing.mkdir(mode=FOLDER_MODE, exist_ok=True)
    folder.mkdir(mode=FOLDER_MODE, exist_ok=True)


def open_private(path: Path, mode: Literal["wb", "xb"]) -> BinaryIO:
    """Opens a file for writing. Raises OSError."""
    return open(path, mode, opener=_opener)


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)
