"""The adapters on a host's disk, as runners use them: each is downloaded once, and they share a size budget."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from types import MappingProxyType
from typing import Any

from punica_serve.errors import StoreUnavailable
from punica_serve.errors.invariants import require
from punica_serve.protocol import AdapterRef
from punica_serve.store.adapter_files import is_digest
from punica_serve.store.cache_folder import CacheFolder
from punica_serve.store.cache_room import CacheRoom
from punica_serve.store.download import download_adapter
from punica_serve.store.failure_log import FailureLog
from punica_serve.store.filesystems import FileSystems, folder_of, store_errors
from punica_serve.store.locked_folder import LockedFolder
from punica_serve.store.ranged_read import RangeSlots
from punica_serve.store.threads import StoreThreads

log = logging.getLogger(__name__)

#: Concurrent downloads.
_NUM_DOWNLOADS = 16
#: For work on this host's disk only, so that a slow store does not delay adapters that are already here.
_NUM_LOCAL = 4
_LOCAL_TIMEOUT_S = 30.0
#: How often to check for an adapter that another process of the host is downloading.
_POLL_S = 0.05

OnChange = Callable[[frozenset[str], frozenset[str]], None]


@dataclass(slots=True)
class _Entry:
    """An adapter that is awaited or in use."""

    loading: asyncio.Task[LockedFolder]
    refcount: int = 0


class DiskCache:
    """Adapters in a folder that all runners of a host may share. For one event loop; its owner closes it.

    Invariants: one process of the host at a time downloads an adapter. An adapter in use is never removed, even if that
    exceeds the budget. Only complete adapters with the right digest are ever in use.
    """

    def __init__(
        self,
        folder: Path,
        budget_bytes: int,
        options: Mapping[str, Any] = MappingProxyType({}),
        *,
        timeout_s: float = 300.0,
        on_change: OnChange = lambda came, left: None,
    ) -> None:
        """``options`` are fsspec's options for the store. ``on_change`` is called with the digests that were added to
        the disk and removed from it.

        Reads the folder, which blocks: call it while the process starts.
        """
        self._folder = CacheFolder(folder)
        self._room = CacheRoom(self._folder, budget_bytes)
        self._filesystems = FileSystems(options)
        self._slots = RangeSlots()
        self._failures = FailureLog(log)
        self._timeout_s = timeout_s
        self._on_change = on_change
        self._digests = self._folder.digests()
        self._entries: dict[str, _Entry] = {}
        self._forgotten: set[str] = set()
        self._removals: set[asyncio.Task[bool]] = set()
        self._downloads = StoreThreads(_NUM_DOWNLOADS, "fetching the adapter from the store")
        self._local = StoreThreads(_NUM_LOCAL, "the host's adapter cache")

    @property
    def digests(self) -> frozenset[str]:
        """The adapters on the disk, as far as this process knows."""
        return self._digests

    async def fetch(self, ref: AdapterRef) -> Path:
        """The adapter's folder on this host, in use until ``release(ref.digest)``: one release for each fetch.

        An adapter that is in a plain folder is used in place and never copied. Raises StoreUnavailable, which another
        attempt may cure, and AdapterRejected, which none will.
        """
        folder = folder_of(ref.uri)
        if folder is not None:
            return folder
        require(is_digest(ref.digest), ref.digest)
        self._forgotten.discard(ref.digest)
        entry = self._entries.get(ref.digest)
        if entry is None:
            entry = self._entries[ref.digest] = _Entry(
                asyncio.create_task(self._load(ref), name=f"fetch {ref.digest[:12]}")
            )
        entry.refcount += 1
        try:
            await asyncio.shield(entry.loading)
        except BaseException:
            self.release(ref.digest)
            raise
        return self._folder.path(ref.digest)

    def release(self, digest: str) -> None:
        """Ends one use. Does nothing for an adapter that was used in place."""
        entry = self._entries.get(digest)
        if entry is None:
            return
        entry.refcount -= 1
        if entry.refcount:
            return
        del self._entries[digest]
        _give_up(entry.loading)
        if digest in self._forgotten:
            removal = asyncio.create_task(self.forget(digest), name=f"forget {digest[:12]}")
            self._removals.add(removal)
            removal.add_done_callback(self._removals.discard)

    async def forget(self, digest: str) -> bool:
        """Removes the adapter, now or at its last release here. Returns whether it is gone: other processes may use it
        too.
        """
        self._forgotten.add(digest)
        if digest in self._entries:
            return False
        is_gone = await self._local.call(lambda: self._folder.remove(digest), timeout_s=_LOCAL_TIMEOUT_S)
        if is_gone:
            self._forgotten.discard(digest)
        await self._notice()
        return is_gone

    async def close(self) -> None:
        """Cancels all downloads and ends all uses."""
        tasks = [entry.loading for entry in self._entries.values()] + list(self._removals)
        self._entries.clear()
        for task in tasks:
            _give_up(task)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _load(self, ref: AdapterRef) -> LockedFolder:
        stop = Event()
        deadline = asyncio.timeout(self._timeout_s)
        try:
            async with deadline:
                while True:
                    held = await self._hold_or_download(ref, stop)
                    if held is not None:
                        await self._notice()
                        return held
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise StoreUnavailable(f"fetching the adapter took longer than {self._timeout_s:g} s") from error
        finally:
            stop.set()

    async def _hold_or_download(self, ref: AdapterRef, stop: Event) -> LockedFolder | None:
        """Returns None while another process downloads the adapter."""
        held = await self._local.call(lambda: self._folder.hold(ref.digest), timeout_s=_LOCAL_TIMEOUT_S)
        return held or await self._downloads.call(lambda: self._download(ref, stop), timeout_s=self._timeout_s)

    def _download(self, ref: AdapterRef, stop: Event) -> LockedFolder | None:
        with store_errors("caching an adapter on the host's disk", self._failures):
            self._room.take(ref.num_bytes)
            return self._folder.fill(
                ref.digest,
                lambda incoming: download_adapter(ref, incoming, self._filesystems, self._slots, stop, self._failures),
            )

    async def _notice(self) -> None:
        """Finds adapters that were added or removed, also by other processes."""
        before = self._digests
        self._digests = now = await self._local.call(self._folder.digests, timeout_s=_LOCAL_TIMEOUT_S)
        if now != before:
            self._on_change(now - before, before - now)


def _give_up(task: asyncio.Task[Any]) -> None:
    """Cancels a task, or closes its result."""
    if task.done():
        _close_result(task)
    else:
        task.cancel()
        task.add_done_callback(_close_result)


def _close_result(task: asyncio.Task[Any]) -> None:
    """Closes the result of a task, if it has one."""
    with suppress(asyncio.CancelledError, Exception):
        held = task.result()
        if isinstance(held, LockedFolder):
            held.close()
