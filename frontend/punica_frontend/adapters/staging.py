"""Folders for adapters on their way in."""

import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Lock

from punica_serve.store.filesystems import store_errors
from punica_serve.store.locked_folder import LockedFolder
from punica_serve.store.threads import StoreThreads

_NUM_THREADS = 4
_TIMEOUT_S = 20.0


class Staging:
    """A folder of this process under ``root``, which it holds a lock on, with a folder in it for each adapter.

    What a process leaves when it dies is nobody's: its lock is gone, and the next process removes it.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._threads = StoreThreads(_NUM_THREADS, "the disk of adapters on their way in")
        self._own: Path | None = None
        self._lock: LockedFolder | None = None
        #: Several threads may want the process's first folder.
        self._making = Lock()

    @asynccontextmanager
    async def folder(self) -> AsyncIterator[Path]:
        """An empty folder, removed in the end. Raises StoreUnavailable, also when the disk is full."""
        folder = await self._threads.call(self._make, timeout_s=_TIMEOUT_S)
        try:
            yield folder
        finally:
            await self._threads.call(lambda: shutil.rmtree(folder, ignore_errors=True), timeout_s=_TIMEOUT_S)

    async def clean(self) -> None:
        """Removes what processes that died have left. Raises StoreUnavailable."""
        await self._threads.call(self._clean, timeout_s=_TIMEOUT_S)

    def close(self) -> None:
        """Leaves nothing behind. Blocks."""
        if self._own and self._lock:
            shutil.rmtree(self._own, ignore_errors=True)
            self._lock.close()
            self._own = self._lock = None

    def _make(self) -> Path:
        with store_errors("taking in an adapter"):
            with self._making:
                if self._own is None or not self._own.is_dir():
                    self._own, self._lock = self._make_own()
            return Path(tempfile.mkdtemp(dir=self._own))

    def _make_own(self) -> tuple[Path, LockedFolder]:
        """Another process may take the new folder for a leftover until it is locked: then the next one is tried."""
        self._root.mkdir(parents=True, exist_ok=True)
        while True:
            own = Path(tempfile.mkdtemp(dir=self._root))
            if lock := LockedFolder.own(own):
                return own, lock

    def _clean(self) -> None:
        with store_errors("removing what is left of adapters that were on their way in"):
            folders = list(self._root.iterdir()) if self._root.is_dir() else []
            for folder in folders:
                if folder != self._own and (lock := LockedFolder.own(folder)):
                    shutil.rmtree(folder, ignore_errors=True)
                    lock.close()
