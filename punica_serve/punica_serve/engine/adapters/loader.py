"""Loads adapters to the device while steps go on: host memory -> pages of the LoRA pool.

Other threads fetch, read and copy; the step loop only calls ``poll``, which advances finished work and never waits. An
adapter in use stays. The others are evicted when their pages are needed: least recently used first, pinned ones last.
"""

import logging
from collections import deque
from collections.abc import Callable

import torch

from punica_serve.base_model.lora_layout import pages_needed
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters.adapter_peers import NO_PEERS, AdapterPeers
from punica_serve.engine.adapters.adapter_table import AdapterTable
from punica_serve.engine.adapters.entry import AdapterEntry, AdapterFailure, AdapterState
from punica_serve.engine.adapters.host_cache import HostCache, HostCopy
from punica_serve.engine.adapters.host_loader import Fetch, HostLoader, LoadResult, no_fetch
from punica_serve.engine.adapters.layer_arrival import ArrivalWords
from punica_serve.engine.adapters.load_trace import LoadTrace
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.engine.adapters.packed_store import PackedStore
from punica_serve.engine.adapters.packing import packed_num_bytes
from punica_serve.engine.adapters.page_stream import PageStream
from punica_serve.engine.adapters.reader import AdapterReader
from punica_serve.engine.adapters.step_arrivals import StepArrivals
from punica_serve.engine.adapters.writer import LoraWriter
from punica_serve.protocol import AdapterRef, LoraGroup

log = logging.getLogger(__name__)

#: Loads whose traces are kept until they are taken; the oldest beyond it are forgotten.
_MAX_TRACES = 64

#: The end of the newest step that the device was given; None if it is known to have ended.
Fence = Callable[[], torch.cuda.Event | None]


class AdapterLoader:
    """Owns the page accounting of the LoRA pool. All methods run on the step loop's thread."""

    def __init__(
        self,
        pool: LoraPool,
        host_cache: HostCache,
        model: ModelConfig,
        dtype: torch.dtype,
        on_progress: Callable[[], None],
        fence: Fence,
        fetch: Fetch = no_fetch,
        packed_store: PackedStore | None = None,
        peers: AdapterPeers = NO_PEERS,
        *,
        by_layer: bool = False,
        arrival_words: ArrivalWords | None = None,
    ) -> None:
        """``peers`` load the same adapters.

        ``by_layer``: a prefill may join its adapter's copy, whose layers it waits for one after the other.
        ``arrival_words``: it may also start while others compute what the missing layers add.
        """
        self._pool = pool
        self._host_cache = host_cache
        self._model = model
        self._dtype = dtype
        self._fence = fence
        self._peers = peers
        reader = AdapterReader(host_cache, model, dtype, pool.device, packed_store, peers)
        #: Peers would have to fill their pages by the same time, for which a copy by layers is better.
        self._may_stream = packed_store is not None and peers is NO_PEERS
        self._host = HostLoader(host_cache, reader, fetch, on_progress, self._open_stream)
        self._writer = LoraWriter(pool, on_progress, peers, by_layer=by_layer, arrival_words=arrival_words)
        #: On the device, or on their way there.
        self.adapters = AdapterTable(pool)
        #: Those of them that a step may wait for.
        self.arrivals = StepArrivals(self.adapters, self._writer)
        #: Prefetched to host memory; they go on to the device one at a time, as far as there is room.
        self._prefetched: dict[str, AdapterRef] = {}
        self._prefetching: AdapterEntry | None = None
        self._traces: deque[LoadTrace] = deque(maxlen=_MAX_TRACES)

    def acquire(self, ref: AdapterRef) -> None:
        """Adds a reference, which keeps the adapter until ``release``, and loads it if need be."""
        known = self.adapters.get(ref.digest)
        entry = known or AdapterEntry(ref)
        entry.acquire()
        self.adapters.put_last(entry)
        if known is None:
            copy, trace = self._host.get(ref)
            entry.set_trace(trace)
            self._traces.append(trace)
            if copy is not None:
                entry.stage(copy)
        if entry.state is AdapterState.STAGED:
            self._place(entry)

    def release(self, digest: str) -> None:
        """Drops a reference. Ignored for an adapter that failed meanwhile."""
        entry = self.adapters.get(digest)
        if entry is not None:
            entry.release()
            self.adapters.put_last(entry)
            if entry.refcount == 0:
                entry.set_fence(self._fence())
                self._evict_if_unwanted(entry)

    def prefetch_to_host(self, ref: AdapterRef) -> None:
        """Prefetches an adapter that will be acquired soon to host memory: a hint, cheap to repeat."""
        if ref.digest not in self.adapters:
            self._host.prefetch_to_host(ref)

    def queue_to_host(self, ref: AdapterRef) -> None:
        """Queues a prefetch to host memory behind all others: a hint, ignored while the queue is full."""
        if ref.digest not in self.adapters and ref.digest not in self._host_cache:
            self._host.enqueue(ref, for_device=False)

    def prefetch(self, ref: AdapterRef, *, pin: bool | None = None) -> None:
        """Prefetches an adapter to host memory, and to the device as far as there is room, with low priority.

        ``pin`` keeps it in host memory, and on the device unless adapters in use need its pages. False only unpins it.
        """
        digest = ref.digest
        if pin is False:
            self._host_cache.unpin(digest)
            return
        if reason := self._pool.limits.why_not(ref.ranks):
            log.warning("adapter %s is not prefetched: %s", digest, reason)
            return
        if pin and not self._host_cache.pin(digest, packed_num_bytes(ref.ranks, self._model, self._dtype)):
            log.warning("adapter %s is not pinned: half of `engine.host_cache_bytes` is; raise it", digest)
        if (entry := self.adapters.get(digest)) is not None:
            entry.want()
        if digest in self._host_cache:
            self._prefetched[digest] = ref
        elif not self._host.enqueue(ref, for_device=True):
            log.warning("adapter %s is not prefetched: too many prefetches are queued", digest)

    def evict(self, digest: str) -> None:
        """Unpins an adapter and frees its memory on device and host, once no request uses it."""
        self._host_cache.unpin(digest)
        self._prefetched.pop(digest, None)
        entry = self.adapters.get(digest)
        if entry is None:
            self._host.evict(digest)
        else:
            entry.mark_unwanted()
            self._evict_if_unwanted(entry)

    def poll(self) -> list[AdapterFailure]:
        """Advances every adapter without waiting. Returns those that failed, which are dropped."""
        failures = []
        for loaded in self._host.poll():
            failures += self._take(loaded)
        for entry in self.adapters.copied():
            failures += self._finish_copy(entry)
        # Only now: adapters that have just arrived and are not used any more may be evicted for those that wait.
        for entry in self.adapters.in_state(AdapterState.STAGED):
            self._place(entry)
        for failure in failures:
            # Its requests release it after this call: a new record of the same adapter must not begin before.
            self._prefetched.pop(failure.digest, None)
        self._load_prefetched()
        return failures

    def take_traces(self) -> tuple[LoadTrace, ...]:
        """The loads that requests began since the last call, the newest ones. Some may still go on."""
        traces = tuple(self._traces)
        self._traces.clear()
        return traces

    def close(self) -> None:
        """Starts nothing more. Waits for copies in flight, but not for reads: a disk may hang."""
        self._host.close()
        self._writer.close()

    def _take(self, loaded: LoadResult) -> list[AdapterFailure]:
        """Hands an adapter that has arrived in host memory, or its error, to the requests that wait for it."""
        ref, result = loaded.ref, loaded.result
        entry = self.adapters.get(ref.digest)
        is_awaited = entry is not None and entry.is_loading
        if isinstance(result, BaseException):
            if entry is not None and is_awaited:
                return [self._fail(entry, result)]
            if loaded.for_device:
                log.warning("adapter %s can't be prefetched: %s", ref.digest, result)
        elif entry is not None and is_awaited:
            entry.stage(result)
            if loaded.stream is not None:
                entry.begin_copy(*self._writer.follow(ref, loaded.stream, result.packed.num_bytes))
        else:
            self._host_cache.release(result)
            if loaded.for_device:
                self._prefetched[ref.digest] = ref
        return []

    def _finish_copy(self, entry: AdapterEntry) -> list[AdapterFailure]:
        assert entry.filling is not None
        if entry is self._prefetching:
            self._prefetching = None
        if (error := entry.filling.done.exception()) is not None:
            self._host_cache.evict(entry.ref.digest)  # another rank may lack the files, which the next load brings
            return [self._fail(entry, error)]
        self._release_copy(entry.end_copy())
        self._evict_if_unwanted(entry)
        return []

    def _release_copy(self, copy: HostCopy | None) -> None:
        """Releases a copy in host memory that an adapter has held."""
        if copy is not None:
            self._host_cache.release(copy)

    def _fail(self, entry: AdapterEntry, error: BaseException) -> AdapterFailure:
        """Drops an adapter. Logs the error once for all requests that wait; their own message names no folder."""
        self._end(entry, AdapterState.FAILED)
        log.warning("adapter %s can't be loaded: %s", entry.ref.digest, error)
        return AdapterFailure.of(entry.ref, error)

    def _free(self, entry: AdapterEntry) -> None:
        self._end(entry, AdapterState.EVICTED)

    def _end(self, entry: AdapterEntry, state: AdapterState) -> None:
        """Frees what the adapter holds, and drops its record. An unwanted one leaves host memory and disk, too."""
        self._release_copy(entry.end(state))
        self._writer.free(entry.pages, entry.fence)
        if entry.pages:
            self._peers.free(entry.ref.digest)
        self.adapters.remove(entry.ref.digest)
        if entry.is_unwanted:
            self._host.evict(entry.ref.digest)

    def _evict_if_unwanted(self, entry: AdapterEntry) -> None:
        """Evicts an unwanted adapter that is neither used nor being copied."""
        if entry.is_unwanted and entry.is_evictable:
            self._free(entry)

    def _place(self, entry: AdapterEntry) -> None:
        """Gives a staged adapter pages, evicting unused ones, or leaves it staged. An unused one is evicted instead."""
        if entry.refcount == 0:
            self._free(entry)
            return
        if self._take_pages(entry):
            self._copy(entry)

    def _open_stream(self, ref: AdapterRef, trace: LoadTrace) -> PageStream | None:
        """Pages for an adapter that is about to be read, if a request waits for it and they can be had."""
        entry = self.adapters.get(ref.digest)
        if not self._may_stream or entry is None or not entry.refcount or not entry.is_loading:
            return None
        if entry.stream is None and self._take_pages(entry):
            entry.begin_stream(self._writer.stream(entry.pages, trace))
        return entry.stream

    def _take_pages(self, entry: AdapterEntry) -> bool:
        """Gives an adapter pages, evicting unused ones. False, without effect, if there are too few."""
        needed = entry.num_pages
        if not entry.pages and self._make_room(needed, keep_pinned=False):
            entry.take_pages(self._writer.allocate(needed))
        return bool(entry.pages)

    def _copy(self, entry: AdapterEntry) -> None:
        """Copies a staged adapter to its pages."""
        assert entry.copy is not None
        entry.begin_copy(*self._writer.fill(entry.ref, entry.pages, entry.copy.packed))

    def _load_prefetched(self) -> None:
        """One at a time: a request's copy waits for no more than one of them."""
        while self._prefetched and self._prefetching is None:
            digest = next(iter(self._prefetched))
            ref = self._prefetched.pop(digest)
            needed = pages_needed(ref.ranks)
            is_possible = digest in self._host_cache and digest not in self.adapters
            if not is_possible or not self._make_room(needed, keep_pinned=True):
                continue
            if (copy := self._host_cache.get(digest)) is not None:
                entry = self._prefetching = AdapterEntry(ref)
                self.adapters.put_last(entry)
                entry.stage(copy)
                entry.take_pages(self._writer.allocate(needed))
                self._copy(entry)

    def _make_room(self, needed: dict[LoraGroup, int], *, keep_pinned: bool) -> bool:
        """Evicts unused adapters, pinned ones last, but none if even all of them were not enough."""
        unused = self.adapters.unused
        if keep_pinned:
            unused = [entry for entry in unused if not self._host_cache.is_pinned(entry.ref.digest)]
        else:
            unused.sort(key=lambda entry: self._host_cache.is_pinned(entry.ref.digest))
        if not self.adapters.is_enough(unused, needed):
            return False
        for entry in unused:
            if self._pool.fits(needed):
                break
            self._free(entry)
        return True
