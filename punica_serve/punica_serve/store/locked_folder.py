"""Folders that the processes of one host lock while they read, fill or remove them.

The lock is flock's, on the folder itself: it ends with its process and leaves no file behind. A folder may be renamed
or removed while another process opens it, so a lock counts only if the path still refers to the locked folder.
"""

import fcntl
import os
import weakref
from pathlib import Path


class LockedFolder:
    """A locked folder: shared for reading, exclusive for changing. ``close`` unlocks it, and so does garbage
    collection.
    """

    def __init__(self, descriptor: int) -> None:
        self.close = weakref.finalize(self, os.close, descriptor)

    @classmethod
    def share(cls, path: Path) -> "LockedFolder | None":
        """None if there is no such folder, or it is locked exclusively."""
        return cls._lock(path, fcntl.LOCK_SH)

    @classmethod
    def own(cls, path: Path) -> "LockedFolder | None":
        """None if there is no such folder, or it is locked."""
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
