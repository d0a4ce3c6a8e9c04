"""Folders that processes of one host lock while they read, fill or remove them.

The lock is flock's, on the folder itself: it goes with the process that held it, and leaves no file behind. A folder
may be renamed or removed while another process opens it, so a lock counts only if the name still means what it locked.
"""

import fcntl
import os
import weakref
from pathlib import Path


class LockedFolder:
    """A folder that is held: shared by who reads it, alone by who changes it. Let go by ``close``, or when dropped."""

    def __init__(self, descriptor: int) -> None:
        self.close = weakref.finalize(self, os.close, descriptor)

    @classmethod
    def share(cls, path: Path) -> "LockedFolder | None":
        """None when there is no such folder, or it is held alone."""
        return cls._lock(path, fcntl.LOCK_SH)

    @classmethod
    def own(cls, path: Path) -> "LockedFolder | None":
        """None when there is no such folder, or it is held."""
        return cls._lock(path, fcntl.LOCK_EX)

    @classmethod
    def _lock(cls, path: Path, kind: int) -> "LockedFolder | None":
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        folder = cls(descriptor)
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return folder
        except (BlockingIOError, FileNotFoundError):
            pass
        folder.close()
        return None
