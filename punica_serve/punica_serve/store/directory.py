"""A store in a folder, usually one that all hosts of the cluster mount."""

import filecmp
import os
import shutil
import time
import uuid
from contextlib import suppress
from pathlib import Path

from punica_serve.process.private_files import FOLDER_MODE, make_private_folder, open_private
from punica_serve.store.adapter_files import STORED_FILES, is_digest

#: Prefix of folders that are not adapters yet, or no longer are.
_PASSING = ".passing-"

#: No copy takes this long: older folders were left by processes that died.
_DEAD_S = 24 * 3600.0


class DirectoryStore:
    """Adapters as folders that are renamed into and out of place, so they are either complete or absent.

    A damaged adapter's files are replaced one by one, since a folder can't be renamed onto another. Blocks.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def uri(self, digest: str) -> str:
        return str(self._root / digest)

    def exists(self, digest: str) -> bool:
        return (self._root / digest).is_dir()

    def holds(self, folder: Path, digest: str) -> bool:
        """Whether the store has exactly the bytes of ``folder``; False for a copy damaged on the disk."""
        filecmp.clear_cache()  # it compares times and sizes, which a failing disk leaves unchanged
        try:
            return all(filecmp.cmp(folder / name, self._root / digest / name, shallow=False) for name in STORED_FILES)
        except OSError:
            return False  # the following put reports what is wrong with the disk

    def put(self, folder: Path, digest: str) -> None:
        make_private_folder(self._root)
        passing = self._passing_folder()
        passing.mkdir(mode=FOLDER_MODE)
        try:
            for name in STORED_FILES:
                open_private(passing / name, "xb").close()
                shutil.copyfile(folder / name, passing / name)  # keeps the mode of an existing file
                _flush(passing / name)
            _flush(passing)
            self._rename_into_place(passing, digest)
        finally:
            shutil.rmtree(passing, ignore_errors=True)

    def delete(self, digest: str) -> None:
        passing = self._passing_folder()
        with suppress(FileNotFoundError):
            (self._root / digest).rename(passing)
            shutil.rmtree(passing)

    def digests(self) -> frozenset[str]:
        """All digests. Also removes what dead processes have left."""
        if not self._root.is_dir():
            return frozenset()
        names = os.listdir(self._root)
        for name in names:
            if name.startswith(_PASSING):
                _remove_if_dead(self._root / name)
        return frozenset(filter(is_digest, names))

    def _passing_folder(self) -> Path:
        return self._root / f"{_PASSING}{uuid.uuid4().hex}"

    def _rename_into_place(self, passing: Path, digest: str) -> None:
        try:
            passing.rename(self._root / digest)
        except OSError:
            if not self.exists(digest):
                raise
            # Another process was first, with the same bytes; or there is a damaged copy, which may be in use.
            for name in STORED_FILES:
                (passing / name).replace(self._root / digest / name)
            _flush(self._root / digest)
        _flush(self._root)


def _flush(path: Path) -> None:
    """Flushes to the disk: after a power cut, a name must not refer to files that were never written."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_if_dead(passing: Path) -> None:
    with suppress(FileNotFoundError):
        if time.time() - passing.stat().st_mtime > _DEAD_S:
            shutil.rmtree(passing)
