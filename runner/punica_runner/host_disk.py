"""The adapters on this host's disk, for all its workers: fetched from the store once each, and evicted."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from punica_serve.config.cluster import ClusterConfig
from punica_serve.errors import AdapterRejected, ConfigError, PunicaError, StoreUnavailable
from punica_serve.protocol import AdapterFetched, AdapterRef, AdaptersCached, WireError
from punica_serve.store.disk_cache import DiskCache, OnChange

log = logging.getLogger(__name__)

T = TypeVar("T")


class HostDisk:
    """Fetches and evicts adapters, and owns the tasks that do so.

    A worker needs the files only while it reads them, and fetches them again if they were evicted before, so no adapter
    stays in use after the answer. A worker waits at most ``timeout_s``, because its requests take places that others
    could use. A fetch that takes longer continues, within the cache's own timeout, for later requests. Until the store
    has answered again, no fetch waits for it at all.
    """

    def __init__(self, cache: DiskCache, *, timeout_s: float) -> None:
        self._cache = cache
        self._timeout_s = timeout_s
        self._tasks: set[asyncio.Task[Any]] = set()
        #: The store did not answer in time when it was last asked.
        self._is_store_down = False
        #: Digests of the fetches that continue though no worker waits for them.
        self._late: set[str] = set()

    def holdings(self) -> AdaptersCached:
        """All adapters on the disk."""
        return AdaptersCached(None, came=tuple(sorted(self._cache.digests)))

    def fetch(self, ref: AdapterRef, answer: Callable[[AdapterFetched], None]) -> None:
        """Fetches an adapter's files, and then calls ``answer`` once. Fetches don't delay each other."""
        self._start(self._fetch(ref, answer), f"fetch {ref.digest[:12]}")

    def evict(self, digest: str) -> None:
        """Removes an adapter's files once no fetch uses them."""
        self._start(self._evict(digest), f"evict {digest[:12]}")

    async def close(self) -> None:
        """Cancels all fetches and evictions."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._cache.close()

    def _start(self, work: Coroutine[None, None, T], name: str) -> asyncio.Task[T]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _fetch(self, ref: AdapterRef, answer: Callable[[AdapterFetched], None]) -> None:
        asks_store = "://" in ref.uri and ref.digest not in self._cache.digests
        if asks_store and self._is_store_down and ref.digest in self._late:
            answer(_late(ref))
            return
        fetching = self._start(self._cache.fetch(ref), f"fetch files {ref.digest[:12]}")
        await asyncio.wait([fetching], timeout=0 if asks_store and self._is_store_down else self._timeout_s)
        if fetching.done():
            answer(_answer(ref, fetching))
        else:
            answer(_late(ref))
            await self._finish_late(ref, fetching)
        error = fetching.exception()
        if asks_store:
            self._is_store_down = isinstance(error, StoreUnavailable)
        if error is None:
            self._cache.release(ref.digest)

    async def _finish_late(self, ref: AdapterRef, fetching: "asyncio.Task[Path]") -> None:
        self._is_store_down = True
        self._late.add(ref.digest)
        try:
            await asyncio.wait([fetching])
        finally:
            self._late.discard(ref.digest)

    async def _evict(self, digest: str) -> None:
        try:
            await self._cache.forget(digest)
        except Exception:  # the scheduler asks again as long as the files are there
            log.exception("adapter %s can't be removed from the disk", digest)


def _answer(ref: AdapterRef, fetching: "asyncio.Task[Path]") -> AdapterFetched:
    error = fetching.exception()
    if error is None:
        return AdapterFetched(ref.digest, str(fetching.result()))
    if isinstance(error, PunicaError):
        return _failed(ref, error)
    log.error("adapter %s can't be fetched", ref.digest, exc_info=error)  # the worker needs an answer all the same
    return _failed(ref, StoreUnavailable("the files can't be fetched; the runner's log says more"))


def _late(ref: AdapterRef) -> AdapterFetched:
    return _failed(ref, StoreUnavailable("the store did not deliver the adapter in time; the fetch continues"))


def _failed(ref: AdapterRef, error: PunicaError) -> AdapterFetched:
    return AdapterFetched(ref.digest, error=WireError.of(error), is_permanent=isinstance(error, AdapterRejected))


def cache_folder(config: ClusterConfig) -> Path:
    """The folder of this host's adapters."""
    return (config.data_folder / "cache").absolute()


def open_cache(config: ClusterConfig, on_change: OnChange) -> DiskCache:
    """Opens the host's disk cache. Raises ConfigError if its folder can't be created."""
    folder = cache_folder(config)
    try:
        return DiskCache(
            folder,
            config.store.cache_bytes,
            config.store.options,
            timeout_s=config.store.transfer_timeout_s,
            on_change=on_change,
        )
    except OSError as error:
        message = f"`data_folder`: adapters can't be stored in {folder}: {error.strerror}; set another folder"
        raise ConfigError(message, param="data_folder") from error
