"""The adapters on this host's disk, for all its workers: fetched from the store, each once, and forgotten."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from punica_serve.errors import AdapterRejected, PunicaError, StoreUnavailable
from punica_serve.protocol import AdapterFetched, AdapterRef, AdaptersCached, WireError
from punica_serve.store.host_cache import DiskCache

log = logging.getLogger(__name__)

T = TypeVar("T")


class HostDisk:
    """Owns the tasks of what is under way.

    A worker needs the files only while it reads them, and fetches them again where they have gone before: so nothing
    stays in use here beyond the answer. Nor does a worker wait longer than ``timeout_s``, for its requests take places
    that others could use. What has taken longer goes on, as long as the cache lets it, for whoever asks next; and until
    the store has answered somebody again, nobody waits for it at all.
    """

    def __init__(self, cache: DiskCache, *, timeout_s: float) -> None:
        self._cache = cache
        self._timeout_s = timeout_s
        self._tasks: set[asyncio.Task[Any]] = set()
        #: Whether the store did not answer when it was last asked.
        self._is_store_away = False
        #: Digests that it is still asked for, though nobody waits any more.
        self._late: set[str] = set()

    def holdings(self) -> AdaptersCached:
        """All that is there."""
        return AdaptersCached(None, came=tuple(sorted(self._cache.digests)))

    def fetch(self, ref: AdapterRef, answer: Callable[[AdapterFetched], None]) -> None:
        """Brings an adapter's files, and then calls ``answer``, once. Those that wait for others delay nobody."""
        self._start(self._fetch(ref, answer), f"fetch {ref.digest[:12]}")

    def forget(self, digest: str) -> None:
        """Removes an adapter's files, when nobody fetches it."""
        self._start(self._forget(digest), f"forget {digest[:12]}")

    async def close(self) -> None:
        """Gives up what is under way."""
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
        if asks_store and self._is_store_away and ref.digest in self._late:
            answer(_late(ref))
            return
        bringing = self._start(self._cache.fetch(ref), f"bring {ref.digest[:12]}")
        await asyncio.wait([bringing], timeout=0 if asks_store and self._is_store_away else self._timeout_s)
        if bringing.done():
            answer(_answer(ref, bringing))
        else:
            answer(_late(ref))
            await self._bring_late(ref, bringing)
        error = bringing.exception()
        if asks_store:
            self._is_store_away = isinstance(error, StoreUnavailable)
        if error is None:
            self._cache.release(ref.digest)

    async def _bring_late(self, ref: AdapterRef, bringing: "asyncio.Task[Path]") -> None:
        self._is_store_away = True
        self._late.add(ref.digest)
        try:
            await asyncio.wait([bringing])
        finally:
            self._late.discard(ref.digest)

    async def _forget(self, digest: str) -> None:
        try:
            await self._cache.forget(digest)
        except Exception:  # it is asked for again as long as the files are there
            log.exception("adapter %s can't be removed from the disk", digest)


def _answer(ref: AdapterRef, bringing: "asyncio.Task[Path]") -> AdapterFetched:
    error = bringing.exception()
    if error is None:
        return AdapterFetched(ref.digest, str(bringing.result()))
    if isinstance(error, PunicaError):
        return _failed(ref, error)
    log.error("adapter %s can't be fetched", ref.digest, exc_info=error)  # whoever waits must be told all the same
    return _failed(ref, StoreUnavailable("the files can't be fetched; the runner's log says more"))


def _late(ref: AdapterRef) -> AdapterFetched:
    return _failed(ref, StoreUnavailable("the store does not give the adapter in time; it is still asked for it"))


def _failed(ref: AdapterRef, error: PunicaError) -> AdapterFetched:
    return AdapterFetched(ref.digest, error=WireError.of(error), is_permanent=isinstance(error, AdapterRejected))
