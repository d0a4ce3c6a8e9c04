"""The cache folder that all processes of a host download adapters into: the blocking part of disk_cache.py.

DIGEST/            an adapter; its modification time is when it was last used
packed/...         packed forms of adapters; see packed_folder.py
incoming/...       an adapter that a process downloads or removes, or did when it died
"""

import os
import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from punica_serve.process.private_files import FOLDER_MODE, is_own, make_private_folder
from punica_serve.store.adapter_files import is_digest
from punica_serve.store.checksum_file import trusted_checksums
from punica_serve.store.incoming_adapter import IncomingAdapter
from punica_serve.store.locked_folder import LockedFolder
from punica_serve.store.packed_folder import PackedFolder

_INCOMING = "incoming"


@dataclass(frozen=True, slots=True)
class _Entry:
    """An adapter, or one of its packed forms."""

    digest: str
    num_bytes: int
    used_ns: int
    #: None for the adapter.
    layout: str | None = None


class CacheFolder:
    """Adapters under locks: reading one needs a shared lock, removing it an exclusive one."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.packed = PackedFolder(root)
        make_private_folder(root / _INCOMING)
        for rest in (root / _INCOMING).iterdir():
            if owned := LockedFolder.own(rest):
                shutil.rmtree(rest)
                owned.close()

    def path(self, digest: str) -> Path:
        return self._root / digest

    def checksums(self, folder: Path) -> bytes | None:
        """Those of the adapter that was downloaded to ``folder``; None if it is not in here, or has none to trust."""
        return trusted_checksums(folder) if folder.parent == self._root else None

    def incoming(self, digest: str) -> IncomingAdapter | None:
        """The adapter while a process of this host downloads it; None if there is none that can be trusted.

        Raises OSError.
        """
        if not all(is_own(folder.lstat()) for folder in (self._root, self._root / _INCOMING)):
            return None
        return IncomingAdapter.open(self._root / _INCOMING / digest)

    def digests(self) -> frozenset[str]:
        return frozenset(filter(is_digest, os.listdir(self._root)))

    def hold(self, digest: str) -> LockedFolder | None:
        """Locks the adapter for reading and marks it as used; None if it is not here."""
        held = LockedFolder.share(self.path(digest))
        if held is not None:
            os.utime(self.path(digest))
        return held

    def fill(self, digest: str, download: Callable[[Path], None]) -> LockedFolder | None:
        """Downloads the adapter and locks it; None while another process downloads it, or has just done so."""
        incoming = self._root / _INCOMING / digest
        with suppress(FileExistsError):  # mkdir's own exist_ok fails if the folder is removed at this moment
            incoming.mkdir(mode=FOLDER_MODE)
        owned = LockedFolder.own(incoming)
        if owned is None:
            return None
        try:
            if not self.path(digest).exists():
                download(incoming)
                incoming.rename(self.path(digest))
            else:
                incoming.rmdir()
        except BaseException:
            shutil.rmtree(incoming, ignore_errors=True)
            raise
        finally:
            owned.close()
        return self.hold(digest)

    def remove(self, digest: str) -> bool:
        """Removes the adapter with its packed forms, and returns whether it is gone. False while anyone uses it."""
        owned = LockedFolder.own(self.path(digest))
        if owned is None:
            if self.path(digest).exists():
                return False
            self.packed.remove(digest)  # of an adapter that is used in place
            return True
        self.packed.remove(digest)
        # Renamed first: a process that dies while removing files must not leave part of an adapter.
        going = self._root / _INCOMING / uuid.uuid4().hex
        self.path(digest).rename(going)
        shutil.rmtree(going)
        owned.close()
        return True

    def make_room(self, num_bytes: int, budget_bytes: int) -> int:
        """Removes the least recently used adapters until ``num_bytes`` more fit the budget or the rest are in use.

        Packed forms go before their adapters. Returns the bytes that are left then, less than 0 if they don't fit.
        """
        entries = sorted(self._entries(), key=lambda entry: entry.used_ns)
        excess = sum(entry.num_bytes for entry in entries) + num_bytes - budget_bytes
        for entry in entries:
            if excess <= 0:
                break
            if entry.layout is not None:
                self.packed.drop(entry.digest, entry.layout)
            elif not self.remove(entry.digest):
                continue
            excess -= entry.num_bytes
        return -excess

    def _entries(self) -> list[_Entry]:
        entries = []
        for digest in self.digests():
            with suppress(FileNotFoundError):  # another process removed it
                with os.scandir(self.path(digest)) as files:
                    num_bytes = sum(file.stat().st_size for file in files)
                entries.append(_Entry(digest, num_bytes, self.path(digest).stat().st_mtime_ns))
        used_ns = {entry.digest: entry.used_ns for entry in entries}
        for packed in self.packed.entries():
            before_ns = min(packed.used_ns, used_ns.get(packed.digest, packed.used_ns) - 1)
            entries.append(_Entry(packed.digest, packed.num_bytes, before_ns, packed.layout))
        return entries
