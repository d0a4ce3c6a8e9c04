"""Where commands that run for minutes write: tried before they begin, and told in a line if it fails after all.

Permissions are no answer: to the superuser, and in file systems such as /proc, they promise what does not hold.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from punica_serve.errors import ConfigError
from punica_serve.reasons import reason_of


def check_folder(folder: Path, option: str = "--out") -> None:
    """Makes nothing that stays. Raises ConfigError about the option if the folder can't be made, or not written to."""
    try:
        existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        TemporaryDirectory(dir=existing).cleanup()
    except OSError as error:
        message = f"`{option}` {folder} is no folder that can be written to: {error.strerror}; choose another"
        raise ConfigError(message, param=option.removeprefix("--")) from error


def check_file(file: Path, option: str = "--out") -> None:
    """One that is there stays as it is. Raises ConfigError about the option if it can't be written."""
    try:
        if file.exists():
            file.open("ab").close()
            return
    except OSError as error:
        message = f"`{option}` {file} is no file that can be written: {error.strerror}; choose another"
        raise ConfigError(message, param=option.removeprefix("--")) from error
    check_folder(file.parent, option)


@contextmanager
def writing(path: Path, option: str = "--out") -> Iterator[None]:
    """Raises ConfigError about the option where ``path``, or a file below it, can't be written."""
    try:
        yield
    except OSError as error:
        # What a disk says that is full, of a file that is open, is without the file's name.
        message = (
            f"`{option}`: {error.filename or path} can't be written: {reason_of(error)}; make room or choose another"
        )
        raise ConfigError(message, param=option.removeprefix("--")) from error
