"""The cluster's store, as frontends use it."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from punica_serve.errors.invariants import require
from punica_serve.store.adapter_files import is_digest
from punica_serve.store.directory import DirectoryStore
from punica_serve.store.failure_log import FailureLog
from punica_serve.store.filesystems import folder_of, store_errors
from punica_serve.store.objects import ObjectStore
from punica_serve.store.threads import StoreThreads

log = logging.getLogger(__name__)

T = TypeVar("T")

#: A hanging store must not delay the refusal of later calls, so few calls wait at a time.
_NUM_THREADS = 8


class AdapterStore:
    """Adapter files by digest, in a folder or at any fsspec URL. Every call ends by its deadline.

    All methods raise StoreUnavailable when the store is down, slow or full.
    """

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any] = MappingProxyType({}),
        *,
        timeout_s: float = 10.0,
        transfer_timeout_s: float = 300.0,
    ) -> None:
        """``options`` are fsspec's options for the URL's file system. ``transfer_timeout_s`` limits a ``put``."""
        folder = folder_of(url)
        self._store = DirectoryStore(folder) if folder is not None else ObjectStore(url, options)
        self._threads = StoreThreads(_NUM_THREADS, "the adapter store")
        self._failures = FailureLog(log)
        self._timeout_s = timeout_s
        self._transfer_timeout_s = transfer_timeout_s

    def uri(self, digest: str) -> str:
        """Where the adapter is once it is stored: a folder's path or a URL."""
        return self._store.uri(_checked(digest))

    async def put(self, folder: Path, digest: str) -> str:
        """Stores a copy of the adapter in ``folder``; ``digest`` is the digest of its files. Returns its URI.

        A damaged copy in the store is replaced.
        """

        def put() -> str:
            if not self._store.holds(folder, digest):
                self._store.put(folder, digest)
            return self._store.uri(digest)

        _checked(digest)
        return await self._call("storing the adapter's files", put, self._transfer_timeout_s)

    async def delete(self, digest: str) -> None:
        """Deletes the adapter, if the store has it."""
        _checked(digest)
        await self._call("deleting the adapter's files", lambda: self._store.delete(digest), self._timeout_s)

    async def exists(self, digest: str) -> bool:
        _checked(digest)
        return await self._call("looking for the adapter's files", lambda: self._store.exists(digest), self._timeout_s)

    async def digests(self) -> frozenset[str]:
        """Digests of all adapters in the store, partial ones left by dead processes included."""
        return await self._call("listing the adapter store", self._store.digests, self._timeout_s)

    async def _call(self, what: str, function: Callable[[], T], timeout_s: float) -> T:
        def call() -> T:
            with store_errors(what, self._failures):
                return function()

        return await self._threads.call(call, timeout_s=timeout_s)


def _checked(digest: str) -> str:
    require(is_digest(digest), digest)
    return digest
