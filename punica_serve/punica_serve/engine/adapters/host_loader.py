"""Loads adapters to host memory: store -> the host's disk -> host cache, each at most once at a time.

Adapters that requests wait for start at once. Prefetches queue for a few slots, so they never take all threads. A
worker's supervisor fetches the files of a remote store, on no thread from here: however slow the store is, adapters
whose files are on the host don't wait for it.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from punica_serve.engine.adapters.host_cache import HostCache, HostCopy
from punica_serve.engine.adapters.reader import AdapterReader
from punica_serve.errors import StoreUnavailable
from punica_serve.protocol import AdapterRef

#: Fetches an adapter's files to this host's disk, where they may be evicted at any time. AdapterRejected: the files are
#: wrong, on every host.
Fetch = Callable[[AdapterRef], Future[Path]]

#: The share of reader threads for prefetches; the others stay free for adapters that running requests wait for.
_PREFETCH_SHARE = 0.75
#: Prefetches from the store at a time: they take no thread, but the store's bandwidth.
_MAX_PREFETCHED_FETCHES = 8
#: Prefetches that may queue; more are refused.
_MAX_QUEUED = 4096
#: Adapters remembered as prefetched and not used since; the oldest beyond it may be read again in vain.
_MAX_REMEMBERED = 4096
#: Fetches of one adapter: its folder may be evicted from the disk before it is read, but hardly so often.
_MAX_FETCHES = 3


@dataclass(frozen=True, slots=True)
class LoadResult:
    """A load that has ended: a copy in host memory with one reference, or an error."""

    ref: AdapterRef
    result: HostCopy | BaseException
    #: Whether it is to go on to the device.
    for_device: bool


@dataclass(slots=True)
class _Work:
    ref: AdapterRef
    for_device: bool = False
    #: A request waits for it.
    is_needed: bool = False
    #: It is evicted as soon as it is loaded.
    is_unwanted: bool = False
    #: The files of a remote adapter on this host.
    folder: Path | None = None
    num_fetches: int = 0
    #: The queue whose slot it takes, if it is a prefetch.
    queue: "_PrefetchQueue | None" = None
    future: "Future[Path] | Future[HostCopy] | None" = None

    @property
    def needs_fetch(self) -> bool:
        return self.folder is None and "://" in self.ref.uri


class _PrefetchQueue:
    """Prefetches, first come, first served, a limited number at a time."""

    def __init__(self, max_running: int) -> None:
        self._max_running = max_running
        self.num_running = 0
        self.waiting: dict[str, _Work] = {}

    @property
    def has_room(self) -> bool:
        return self.num_running < self._max_running


class HostLoader:
    """All methods run on one thread; ``poll`` collects what other threads have finished."""

    def __init__(
        self, host_cache: HostCache, reader: AdapterReader, fetch: Fetch, on_progress: Callable[[], None]
    ) -> None:
        self._host_cache = host_cache
        self._reader = reader
        self._fetch = fetch
        self._on_progress = on_progress
        self._running: dict[str, _Work] = {}
        self._reads = _PrefetchQueue(int(_PREFETCH_SHARE * reader.num_threads))
        self._fetches = _PrefetchQueue(_MAX_PREFETCHED_FETCHES)
        self._prefetched: dict[str, None] = {}

    @property
    def is_idle(self) -> bool:
        return not (self._running or self._reads.waiting or self._fetches.waiting)

    def get(self, ref: AdapterRef) -> HostCopy | None:
        """The adapter with one more reference; None if it is not cached: then it is loaded at once."""
        self._prefetched.pop(ref.digest, None)
        copy = self._host_cache.get(ref.digest)
        if copy is None:
            work = self._running.get(ref.digest) or self._remove(ref.digest) or _Work(ref)
            work.is_needed, work.is_unwanted = True, False
            if work.future is None:
                self._start(work)
        return copy

    def prefetch_to_host(self, ref: AdapterRef) -> None:
        """Prefetches an adapter that will be used soon: a hint, cheap to repeat.

        Ignored while enough others are loading. Errors are reported when the adapter is used.
        """
        work = _Work(ref)
        if ref.digest in self._prefetched or not self._queue_of(work).has_room:
            return
        self._prefetched[ref.digest] = None
        if len(self._prefetched) > _MAX_REMEMBERED:
            del self._prefetched[next(iter(self._prefetched))]
        if not self._has(ref.digest):
            self._append(work)

    def enqueue(self, ref: AdapterRef, *, for_device: bool) -> bool:
        """Queues a prefetch. False, without effect, if the queue is full."""
        if (work := self._work(ref.digest)) is not None:
            work.is_unwanted = False
            work.for_device |= for_device
            return True
        if len(self._reads.waiting) + len(self._fetches.waiting) >= _MAX_QUEUED:
            return False
        self._append(_Work(ref, for_device=for_device))
        return True

    def evict(self, digest: str) -> None:
        """Frees the adapter's host memory, if it is loading as soon as that has ended."""
        self._prefetched.pop(digest, None)
        self._remove(digest)
        if (work := self._running.get(digest)) is not None:
            work.is_unwanted = True
        self._host_cache.evict(digest)

    def poll(self) -> list[LoadResult]:
        """The loads that have ended since the last call. Starts queued prefetches in free slots."""
        results = []
        for work in [work for work in self._running.values() if work.future is not None and work.future.done()]:
            loaded = self._finish(work)
            if loaded is not None:
                results.append(loaded)
        self._start_queued()
        return results

    def close(self) -> None:
        """Starts nothing more. Does not wait for reads in progress: a disk may hang."""
        self._reader.close()

    def _has(self, digest: str) -> bool:
        return digest in self._host_cache or self._work(digest) is not None

    def _work(self, digest: str) -> _Work | None:
        return self._running.get(digest) or self._reads.waiting.get(digest) or self._fetches.waiting.get(digest) or None

    def _queue_of(self, work: _Work) -> _PrefetchQueue:
        return self._fetches if work.needs_fetch else self._reads

    def _append(self, work: _Work) -> None:
        self._queue_of(work).waiting[work.ref.digest] = work
        self._start_queued()

    def _remove(self, digest: str) -> _Work | None:
        return self._reads.waiting.pop(digest, None) or self._fetches.waiting.pop(digest, None)

    def _start_queued(self) -> None:
        for queue in (self._fetches, self._reads):
            while queue.waiting and queue.has_room:
                work = queue.waiting.pop(next(iter(queue.waiting)))
                work.queue = queue
                queue.num_running += 1
                self._start(work)

    def _start(self, work: _Work) -> None:
        self._running[work.ref.digest] = work
        if work.needs_fetch:
            work.num_fetches += 1
            work.future = self._fetch(work.ref)
        else:
            local = work.ref if work.folder is None else replace(work.ref, uri=str(work.folder))
            work.future = self._reader.start(local)
        work.future.add_done_callback(lambda _: self._on_progress())

    def _finish(self, work: _Work) -> LoadResult | None:
        """Takes the result of finished work. None: there is more to do, or the adapter was evicted."""
        assert work.future is not None
        error = work.future.exception()
        result = error or work.future.result()
        work.future = None
        del self._running[work.ref.digest]
        if work.queue is not None:
            work.queue.num_running -= 1
            work.queue = None
        if isinstance(result, HostCopy) and work.is_unwanted:
            self._host_cache.release(result)
            self._host_cache.evict(work.ref.digest)
        if work.is_unwanted:
            return None
        if isinstance(result, Path):
            work.folder = result
        elif isinstance(result, FileNotFoundError) and work.folder is not None and work.num_fetches < _MAX_FETCHES:
            work.folder = None  # evicted from the disk meanwhile
        else:
            return LoadResult(work.ref, result, work.for_device)
        if work.is_needed:
            self._start(work)
        else:
            self._append(work)
        return None


def no_fetch(ref: AdapterRef) -> Future[Path]:
    """For an engine without a supervisor."""
    future: Future[Path] = Future()
    future.set_exception(StoreUnavailable(f"{ref.uri}: only a runner's workers get adapters from a store"))
    return future
