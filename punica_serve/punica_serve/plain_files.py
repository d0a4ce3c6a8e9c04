"""Files that users name, opened so that nobody waits for ever."""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path


class NotPlain(OSError):
    """A pipe or a device, whose bytes may never come or never end."""


def open_plain(path: Path) -> BufferedReader:
    """Opens a file to read. Raises NotPlain or another OSError, which name the path."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise NotPlain(errno.EINVAL, "it is no plain file", str(path))
