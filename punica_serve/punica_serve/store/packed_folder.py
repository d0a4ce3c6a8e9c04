"""Where the packed forms of a host's adapters lie: packed/DIGEST/LAYOUT below the host's cache folder.

A file appears whole, by a rename. Readers need no lock: a file that is removed while it is open stays readable. The
folder holds weights that are trusted by their checksums alone, so nobody else may write to it; see docs/security.md.
"""

import fcntl
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from punica_serve.errors import ConfigError
from punica_serve.process.private_files import FILE_MODE, FOLDER_MODE, OTHERS_MAY_WRITE, make_private_folder
from punica_serve.store.adapter_files import is_digest

log = logging.getLogger(__name__)

_FOLDER, _INCOMING = "packed", "incoming"


@dataclass(frozen=True, slots=True)
class PackedCache:
    """The host's cache folder, which adapters' files and packed forms share, and the bytes that it may take."""

    folder: Path
    budget_bytes: int


@dataclass(frozen=True, slots=True)
class PackedEntry:
    """One packed form of an adapter."""

    digest: str
    layout: str
    num_bytes: int
    used_ns: int


class PackedFolder:
    """The files of all layouts, for any number of processes. Every method blocks."""

    def __init__(self, cache_folder: Path) -> None:
        """Raises ConfigError for a folder of another user."""
        self._root = cache_folder / _FOLDER
        self.make()
        self._remove_rest()

    def make(self) -> None:
        """Makes what is not there, as after an operator has emptied the cache.

        Raises OSError, and ConfigError for a folder of another user.
        """
        for folder in (self._root, self._root / _INCOMING):
            make_private_folder(folder)
            _make_own(folder)

    def mark_used(self, digest: str, layout: str) -> None:
        """A file was used, so it is evicted later, if it is there and the disk can be written."""
        with suppress(OSError):
            os.utime(self.path(digest, layout), follow_symlinks=False)

    def has(self, digest: str, layout: str) -> bool:
        """Whether the file is there; False also if the disk can't say."""
        try:
            return self.path(digest, layout).exists()
        except OSError:
            return False

    def write(self, digest: str, layout: str, write: Callable[[int], None], is_wanted: Callable[[], bool]) -> None:
        """Makes a file by ``write``, which gets its descriptor. It is there whole or, after any error, not at all.

        Nor is it if ``is_wanted`` is false in the end. Raises OSError.
        """
        path, incoming = self.path(digest, layout), self._root / _INCOMING / uuid.uuid4().hex
        descriptor = os.open(incoming, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # tells it from one whose process has died
            write(descriptor)
            if is_wanted():
                path.parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
                incoming.rename(path)
        finally:
            os.close(descriptor)
            incoming.unlink(missing_ok=True)

    def drop(self, digest: str, layout: str) -> None:
        """Removes one file, or whatever is in its place. Raises OSError."""
        path = self.path(digest, layout)
        _remove(path)
        with suppress(OSError):  # others are there
            path.parent.rmdir()

    def remove(self, digest: str) -> None:
        """Removes an adapter's files of all layouts."""
        shutil.rmtree(self._root / digest, ignore_errors=True)

    def entries(self) -> Iterator[PackedEntry]:
        for digest in filter(is_digest, os.listdir(self._root)):
            with suppress(FileNotFoundError), os.scandir(self._root / digest) as files:
                for file in files:
                    found = file.stat(follow_symlinks=False)
                    yield PackedEntry(digest, file.name, found.st_size, found.st_mtime_ns)

    def path(self, digest: str, layout: str) -> Path:
        """Where the file lies, or would. ``open_own_file`` opens it, if nobody else may have written it."""
        assert is_digest(digest), digest
        return self._root / digest / layout

    def _remove_rest(self) -> None:
        """Removes what processes left behind when they died."""
        for rest in (self._root / _INCOMING).iterdir():
            with suppress(OSError):
                descriptor = os.open(rest, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    rest.unlink(missing_ok=True)
                finally:
                    os.close(descriptor)


def _remove(entry: Path) -> None:
    """Removes a file, a link or a folder. Raises OSError for a file or a link that can't be removed."""
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry, ignore_errors=True)
    else:
        entry.unlink(missing_ok=True)


def _make_own(folder: Path) -> None:
    """Empties and closes a folder that others may have written to. Raises ConfigError for one of another user."""
    found = folder.stat()
    if found.st_uid != os.geteuid():
        message = (
            f"`data_folder`: {folder} holds weights that workers trust, and belongs to another user; `chown` it to the "
            "user of the processes, or remove it"
        )
        raise ConfigError(message, param="data_folder")
    if found.st_mode & OTHERS_MAY_WRITE:
        log.warning("others may have written to %s, so its packed adapters are removed and made again", folder)
        folder.chmod(FOLDER_MODE)
        for entry in folder.iterdir():
            _remove(entry)
