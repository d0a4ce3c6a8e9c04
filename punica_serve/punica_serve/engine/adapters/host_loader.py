"""Loads adapters to host memory: store -> the host's disk -> host cache, each at most once at a time.

Adapters that requests wait for start at once. Prefetches queue for a few slots, so they never take all threads. A
worker's supervisor fetches the files of a remote store: however slow the store is, adapters whose files are on the host
don't wait for it. They are packed while they come, as far as a few threads for that are free.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from punica_serve.engine.adapters.host_cache import HostCache, HostCopy
from punica_serve.engine.adapters.host_load import HostLoad, LoadState, PrefetchQueue
from punica_serve.engine.adapters.load_trace import LoadTrace
from punica_serve.engine.adapters.page_stream import PageStream
from punica_serve.engine.adapters.reader import AdapterReader
from punica_serve.errors import StoreUnavailable
from punica_serve.protocol import AdapterRef

#: Fetches an adapter's files to this host's disk, where they may be evicted at any time. AdapterRejected: the files are
#: wrong, on every host.
Fetch = Callable[[AdapterRef], Future[Path]]

#: The pages of an adapter that is about to be read, to be filled meanwhile; None if nobody waits for it, or none are
#: free. The trace is its load's.
OpenStream = Callable[[AdapterRef, LoadTrace], PageStream | None]

#: The share of reader threads for prefetches; the others stay free for adapters that running requests wait for.
_PREFETCH_SHARE = 0.75
#: Prefetches from the store at a time: they take no thread, but the store's bandwidth.
_MAX_PREFETCHED_FETCHES = 8
#: Prefetches that may queue; more are refused.
_MAX_QUEUED = 4096
#: Adapters remembered as prefetched and not used since; the oldest beyond it may be read again in vain.
_MAX_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class LoadResult:
    """A load that has ended: a copy in host memory with one reference, or an error."""

    ref: AdapterRef
    result: HostCopy | BaseException
    #: Whether it is to go on to the device.
    for_device: bool
    #: The copies to its pages there, if they are queued already.
    stream: PageStream | None


class HostLoader:
    """All methods run on one thread; ``poll`` collects what other threads have finished."""

    def __init__(
        self,
        host_cache: HostCache,
        reader: AdapterReader,
        fetch: Fetch,
        on_progress: Callable[[], None],
        open_stream: OpenStream = lambda _ref, _trace: None,
    ) -> None:
        self._open_stream = open_stream
        self._host_cache = host_cache
        self._reader = reader
        self._fetch = fetch
        self._on_progress = on_progress
        self._running: dict[str, HostLoad] = {}  # those FETCHING and READING
        self._reads = PrefetchQueue(int(_PREFETCH_SHARE * reader.num_threads))
        self._fetches = PrefetchQueue(_MAX_PREFETCHED_FETCHES)
        #: Those that no request has used since, with the traces of their loads.
        self._prefetched: dict[str, LoadTrace] = {}

    @property
    def is_idle(self) -> bool:
        return not (self._running or self._reads.waiting or self._fetches.waiting)

    def get(self, ref: AdapterRef) -> tuple[HostCopy | None, LoadTrace]:
        """The adapter with one more reference; None if it is not cached: then it is loaded at once.

        The trace is that of its load, which may have begun, or have ended, as a prefetch.
        """
        trace = self._prefetched.pop(ref.digest, None)
        if (copy := self._host_cache.get(ref.digest)) is not None:
            return copy, trace or LoadTrace(ref.digest)
        load = self._running.get(ref.digest) or self._remove(ref.digest) or HostLoad(ref)
        load.need()
        if load.state is LoadState.QUEUED:
            self._start(load)
        return None, load.trace

    def prefetch_to_host(self, ref: AdapterRef) -> None:
        """Prefetches an adapter that will be used soon: a hint, cheap to repeat.

        Ignored while enough others are loading. Errors are reported when the adapter is used.
        """
        load = HostLoad(ref)
        if ref.digest in self._prefetched or not self._queue_of(load).has_room:
            return
        self._prefetched[ref.digest] = load.trace
        if len(self._prefetched) > _MAX_REMEMBERED:
            del self._prefetched[next(iter(self._prefetched))]
        if not self._has(ref.digest):
            self._append(load)

    def enqueue(self, ref: AdapterRef, *, for_device: bool) -> bool:
        """Queues a prefetch. False, without effect, if the queue is full."""
        if (load := self._load(ref.digest)) is not None:
            load.want(for_device=for_device)
            return True
        if len(self._reads.waiting) + len(self._fetches.waiting) >= _MAX_QUEUED:
            return False
        self._append(HostLoad(ref, for_device=for_device))
        return True

    def evict(self, digest: str) -> None:
        """Frees the adapter's host memory, if it is loading as soon as that has ended; and removes its packed form."""
        self._prefetched.pop(digest, None)
        if (load := self._remove(digest)) is not None:
            load.end(LoadState.DROPPED)
        elif (load := self._running.get(digest)) is not None:
            load.mark_unwanted()
        self._host_cache.evict(digest)
        self._reader.evict(digest)

    def poll(self) -> list[LoadResult]:
        """The loads that have ended since the last call. Starts queued prefetches in free slots."""
        results, ended = [], [load for load in self._running.values() if load.is_step_done]
        self._reader.tell_peers(self._is_wanted)  # before any of these is copied
        for load in ended:
            loaded = self._finish(load)
            if loaded is not None:
                results.append(loaded)
        results += self._give_up_late(time.monotonic())
        self._start_queued()
        return results

    def close(self) -> None:
        """Starts nothing more. Does not wait for reads in progress: a disk may hang."""
        self._reader.close()

    def _is_wanted(self, digest: str) -> bool:
        load = self._running.get(digest)
        return load is not None and not load.is_unwanted

    def _has(self, digest: str) -> bool:
        return digest in self._host_cache or self._load(digest) is not None

    def _load(self, digest: str) -> HostLoad | None:
        return self._running.get(digest) or self._reads.waiting.get(digest) or self._fetches.waiting.get(digest)

    def _queue_of(self, load: HostLoad) -> PrefetchQueue:
        return self._fetches if load.needs_fetch else self._reads

    def _append(self, load: HostLoad) -> None:
        self._queue_of(load).append(load)
        self._start_queued()

    def _remove(self, digest: str) -> HostLoad | None:
        return self._reads.remove(digest) or self._fetches.remove(digest)

    def _start_queued(self) -> None:
        for queue in (self._fetches, self._reads):
            while queue.waiting and queue.has_room:
                self._start(queue.take_next())

    def _start(self, load: HostLoad) -> None:
        self._running[load.ref.digest] = load
        future: Future[Path] | Future[HostCopy] | Future[Path | HostCopy]
        if load.needs_fetch:
            future = self._reader.follow(load.ref, self._fetch(load.ref), load.trace, self._on_progress)
            load.begin_fetch(future)
        else:
            stream = self._open_stream(load.ref, load.trace)
            future = self._reader.start(load.local_ref, stream, load.trace)
            load.begin_read(future, stream)
        future.add_done_callback(lambda _: self._on_progress())

    def _give_up_late(self, now_s: float) -> list[LoadResult]:
        """Loads that requests wait for in vain: of reads that don't end, and of those behind them on all threads."""
        late = [load for load in self._running.values() if load.is_late(now_s)]
        if sum(not load.needs_fetch for load in late) >= self._reader.num_threads:
            late += [load for load in self._running.values() if load.state is LoadState.READING and load.cancel()]
        for load in late:
            self._free_slots(load)
        return [LoadResult(load.ref, _too_late(), load.for_device, None) for load in late if load.give_up()]

    def _free_slots(self, load: HostLoad) -> None:
        for queue in (self._fetches, self._reads):
            queue.free_slot(load.ref.digest)

    def _finish(self, load: HostLoad) -> LoadResult | None:
        """Takes the result of a step that has ended. None: there is more to do, or the adapter is unwanted."""
        assert load.future is not None
        error = _too_late() if load.future.cancelled() else load.future.exception()
        result = error or load.future.result()
        del self._running[load.ref.digest]
        self._free_slots(load)
        if load.is_unwanted:
            self._drop(load, result)
        elif isinstance(result, Path):
            load.set_folder(result)
            self._go_on(load)
        elif isinstance(result, FileNotFoundError) and load.may_fetch_again:
            load.set_folder(None)  # evicted from the disk meanwhile
            self._go_on(load)
        else:
            load.end(LoadState.LOADED if isinstance(result, HostCopy) else LoadState.FAILED)
            return LoadResult(load.ref, result, load.for_device, load.complete_stream)
        return None

    def _drop(self, load: HostLoad, result: Path | HostCopy | BaseException) -> None:
        load.end(LoadState.DROPPED)
        if isinstance(result, HostCopy):
            self._host_cache.release(result)
            self._host_cache.evict(load.ref.digest)

    def _go_on(self, load: HostLoad) -> None:
        """Starts the load's next step: at once if a request waits for it."""
        if load.is_needed:
            self._start(load)
        else:
            load.requeue()
            self._append(load)


def _too_late() -> StoreUnavailable:
    return StoreUnavailable("its files can't be read in time: the host's disk does not answer; try again later")


def no_fetch(ref: AdapterRef) -> Future[Path]:
    """Fails every fetch, for an engine without a supervisor."""
    future: Future[Path] = Future()
    future.set_exception(StoreUnavailable(f"{ref.uri}: only a runner's workers get adapters from a store"))
    return future
