"""Temporary folders for adapters that are being registered."""

import logging
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Lock

from punica_serve.process.private_files import make_private_folder
from punica_serve.store.failure_log import FailureLog
from punica_serve.store.filesystems import store_errors
from punica_serve.store.locked_folder import LockedFolder
from punica_serve.store.threads import StoreThreads

log = logging.getLogger(__name__)

_NUM_THREADS = 4
_TIMEOUT_S = 20.0


class Staging:
    """A folder of this process under ``root``, locked, with a folder in it for each adapter.

    When a process dies its lock is released, and the next process removes what it left.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._threads = StoreThreads(_NUM_THREADS, "the staging disk")
        self._failures = FailureLog(log)
        self._own: Path | None = None
        self._lock: LockedFolder | None = None
        #: Several threads may need the process's folder first.
        self._making = Lock()

    @asynccontextmanager
    async def folder(self) -> AsyncIterator[Path]:
        """An empty folder, removed at the end. Raises StoreUnavailable, also if the disk is full."""
        folder = await self._threads.call(self._make, timeout_s=_TIMEOUT_S)
        try:
            yield folder
        finally:
            await self._threads.call(lambda: shutil.rmtree(folder, ignore_errors=True), timeout_s=_TIMEOUT_S)

    async def clean(self) -> None:
        """Removes what dead processes have left. Raises StoreUnavailable."""
        await self._threads.call(self._clean, timeout_s=_TIMEOUT_S)

    def close(self) -> None:
        """Removes this process's folder. Blocks."""
        if self._own and self._lock:
            shutil.rmtree(self._own, ignore_errors=True)
            self._lock.close()
            self._own = self._lock = None

    def _make(self) -> Path:
        with store_errors("creating a staging folder", self._failures):
            with self._making:
                if self._own is None or not self._own.is_dir():
                    self._own, self._lock = self._make_own()
            return Path(tempfile.mkdtemp(dir=self._own))

    def _make_own(self) -> tuple[Path, LockedFolder]:
        """Until it is locked, another process may remove the new folder as a leftover; then another is made."""
        make_private_folder(self._root)
        while True:
            own = Path(tempfile.mkdtemp(dir=self._root))
            if lock := LockedFolder.own(own):
                return own, lock

    def _clean(self) -> None:
        with store_errors("removing leftover staging folders", self._failures):
            folders = list(self._root.iterdir()) if self._root.is_dir() else []
            for folder in folders:
                if folder != self._own and (lock := LockedFolder.own(folder)):
                    shutil.rmtree(folder, ignore_errors=True)
                    lock.close()
