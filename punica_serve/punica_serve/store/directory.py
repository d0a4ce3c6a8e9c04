"""A store in a folder, most often one that all hosts of the cluster mount."""

import filecmp
import os
import shutil
import time
import uuid
from contextlib import suppress
from pathlib import Path

from punica_serve.store.adapter_files import STORED_FILES, is_digest

#: What the names of folders start with that are no adapters yet, or no more.
_PASSING = ".passing-"

#: No copy takes so long: what is older was left by a process that died.
_DEAD_S = 24 * 3600.0


class DirectoryStore:
    """Adapters as folders that are renamed into place and out of it, and so are there whole or not at all.

    A damaged one gets new files in place of its own, one by one: a folder can't be renamed onto another. Blocks.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def uri(self, digest: str) -> str:
        return str(self._root / digest)

    def exists(self, digest: str) -> bool:
        return (self._root / digest).is_dir()

    def holds(self, folder: Path, digest: str) -> bool:
        """Whether it is there with the very bytes of ``folder``: what was damaged on the disk is to be put again."""
        filecmp.clear_cache()  # it goes by times and sizes, which a failing disk leaves as they are
        try:
            return all(filecmp.cmp(folder / name, self._root / digest / name, shallow=False) for name in STORED_FILES)
        except OSError:
            return False  # to be put, which tells what is wrong with the disk

    def put(self, folder: Path, digest: str) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        passing = self._passing_folder()
        passing.mkdir()
        try:
            for name in STORED_FILES:
                shutil.copyfile(folder / name, passing / name)
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
        """Also removes what processes that died have left."""
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
            # Another process was first, with the same bytes; or a damaged copy is there, which may be being read.
            for name in STORED_FILES:
                (passing / name).replace(self._root / digest / name)
            _flush(self._root / digest)
        _flush(self._root)


def _flush(path: Path) -> None:
    """To the disk itself: a name that survives a power cut must not lead to files that did not."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_if_dead(passing: Path) -> None:
    with suppress(FileNotFoundError):
        if time.time() - passing.stat().st_mtime > _DEAD_S:
            shutil.rmtree(passing)
