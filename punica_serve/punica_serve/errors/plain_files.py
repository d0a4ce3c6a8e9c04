"""Opens files that users name without ever blocking on a pipe or a device."""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path


class NotPlain(OSError):
    """The file is a pipe or a device, from which a read may never return or never end."""


def open_plain(path: Path) -> BufferedReader:
    """Opens a file for reading. Raises NotPlain or another OSError, which name the path."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise NotPlain(errno.EINVAL, "it is not a regular file", str(path))
