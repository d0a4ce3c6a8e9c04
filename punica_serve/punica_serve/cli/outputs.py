"""Where commands that run for minutes write: tried before they begin, not found out after.

Permissions are no answer: to the superuser, and in file systems such as /proc, they promise what does not hold.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from punica_serve.errors import ConfigError


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
