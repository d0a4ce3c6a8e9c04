"""Checks output paths before commands that run for minutes, and turns write errors into one line.

Checks by writing, since permissions are unreliable for the superuser and in file systems such as /proc.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from punica_serve.errors import ConfigError
from punica_serve.errors.reasons import reason_of


def check_folder(folder: Path, option: str = "--out") -> None:
    """Leaves no new file behind. Raises ConfigError about the option if the folder can't be made or written to."""
    try:
        path = folder.absolute()
        existing = next(each for each in (path, *path.parents) if os.path.lexists(each))
        TemporaryDirectory(dir=existing).cleanup()
    except OSError as error:
        message = f"`{option}` {folder} is not a folder that can be written to: {error.strerror}; choose another"
        raise ConfigError(message, param=option.removeprefix("--")) from error


def check_file(file: Path, option: str = "--out") -> None:
    """Leaves an existing file unchanged. Raises ConfigError about the option if the file can't be written."""
    try:
        if file.exists():
            file.open("ab").close()
            return
    except OSError as error:
        message = f"`{option}` {file} is not a file that can be written: {error.strerror}; choose another"
        raise ConfigError(message, param=option.removeprefix("--")) from error
    check_folder(file.parent, option)


@contextmanager
def writing(path: Path, option: str = "--out") -> Iterator[None]:
    """Raises ConfigError about the option if ``path``, or a file below it, can't be written."""
    try:
        yield
    except OSError as error:
        # The error of a full disk, for an open file, lacks the file's name.
        message = (
            f"`{option}`: {error.filename or path} can't be written: {reason_of(error)}; make room or choose another"
        )
        raise ConfigError(message, param=option.removeprefix("--")) from error
