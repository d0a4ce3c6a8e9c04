"""Brings adapters to the device while steps go on: host memory -> pages of the LoRA pool.

Fetching, reading and copying happen on others' threads; the step loop only calls ``poll``, which moves finished work on
and never waits. An adapter that a running request uses stays; the others leave, least recently used first and those
that someone has pinned last, when their pages are wanted.
"""

import logging
from collections import Counter
from collections.abc import Callable

import torch

from punica_serve.engine.adapter_entry import AdapterEntry, AdapterFailure, Stage
from punica_serve.engine.adapter_reader import AdapterReader
from punica_serve.engine.host_cache import HostCache
from punica_serve.engine.host_loader import Arrival, Fetch, HostLoader, no_fetch
from punica_serve.engine.lora_pool import AdapterPages, LoraPool
from punica_serve.engine.lora_writer import LoraWriter
from punica_serve.engine.packing import packed_num_bytes
from punica_serve.lora_layout import pages_needed
from punica_serve.model_config import ModelConfig
from punica_serve.protocol import AdapterRef, LoraGroup

log = logging.getLogger(__name__)

#: The end of the newest step that the device was given; None if it is known to have ended.
Fence = Callable[[], torch.cuda.Event | None]


class AdapterLoader:
    """Owns the LoRA pool's books. All methods but the threads' work run on the step loop's thread."""

    def __init__(
        self,
        pool: LoraPool,
        host_cache: HostCache,
        model: ModelConfig,
        dtype: torch.dtype,
        on_progress: Callable[[], None],
        fence: Fence,
        fetch: Fetch = no_fetch,
    ) -> None:
        self._pool = pool
        self._host_cache = host_cache
        self._model = model
        self._dtype = dtype
        self._fence = fence
        reader = AdapterReader(host_cache, model, dtype, pool.device)
        self._host = HostLoader(host_cache, reader, fetch, on_progress)
        self._writer = LoraWriter(pool, on_progress)
        self._entries: dict[str, AdapterEntry] = {}  # least recently used first
        #: In host memory, and to go on to the device, one at a time, as far as there is room.
        self._warm: dict[str, AdapterRef] = {}
        self._warming: AdapterEntry | None = None

    @property
    def resident(self) -> tuple[str, ...]:
        """Digests of the adapters on the device, sorted: it changes when one comes or leaves, not when one is used."""
        return tuple(sorted(digest for digest, entry in self._entries.items() if entry.stage is Stage.RESIDENT))

    def pages(self, digest: str) -> AdapterPages:
        """Pages of an adapter that is ready."""
        return self._entries[digest].pages

    @property
    def is_copying(self) -> bool:
        """Whether an adapter that a request waits for is on its way from host memory to the device."""
        return any(entry.stage is Stage.COPYING and entry.num_users for entry in self._entries.values())

    def is_ready(self, digest: str) -> bool:
        entry = self._entries.get(digest)
        return entry is not None and entry.stage is Stage.RESIDENT

    def has_room_for(self, ref: AdapterRef) -> bool:
        """Whether the pool holds this adapter beside all that requests use now: then it will come."""
        needed = pages_needed(ref.ranks)
        used = [e for e in self._entries.values() if e.num_users and e.ref.digest != ref.digest]
        taken = Counter[LoraGroup]()
        for entry in used:
            taken.update(pages_needed(entry.ref.ranks))
        return all(count + taken[group] <= self._pool.num_pages[group] for group, count in needed.items())

    def acquire(self, ref: AdapterRef) -> None:
        """One more request uses the adapter: starts to bring it if need be and keeps it until ``release``."""
        entry = self._entries.pop(ref.digest, None)
        if entry is None:
            entry = AdapterEntry(ref, copy=self._host.get(ref))
            entry.stage = Stage.STAGED if entry.copy else Stage.COMING
        entry.num_users += 1
        self._entries[ref.digest] = entry
        if entry.stage is Stage.STAGED:
            self._place(entry)

    def release(self, digest: str) -> None:
        """One request less. Ignored for an adapter that failed meanwhile."""
        entry = self._entries.pop(digest, None)
        if entry is not None:
            entry.num_users -= 1
            self._entries[digest] = entry  # used until now: the last to leave
            if entry.num_users == 0:
                entry.fence = self._fence()
                self._drop_if_forgotten(entry)

    def prefetch(self, ref: AdapterRef) -> None:
        """Brings an adapter that will be acquired soon to host memory: a hint, cheap to repeat."""
        if ref.digest not in self._entries:
            self._host.prefetch(ref)

    def warm(self, ref: AdapterRef, *, pin: bool | None = None) -> None:
        """Brings an adapter to host memory, and to the device as far as there is room, when nothing else is to do.

        ``pin``: it stays in host memory, and leaves the device only for adapters in use. False only ends that.
        """
        digest = ref.digest
        if pin is False:
            self._host_cache.unpin(digest)
            return
        if pin and not self._host_cache.pin(digest, packed_num_bytes(ref.ranks, self._model, self._dtype)):
            log.warning("adapter %s is not pinned: half of `engine.host_cache_bytes` is; raise it", digest)
        if (entry := self._entries.get(digest)) is not None:
            entry.is_forgotten = False
        if digest in self._host_cache:
            self._warm[digest] = ref
        elif not self._host.queue(ref, for_device=True):
            log.warning("adapter %s is not warmed: too many wait for it", digest)

    def forget(self, digest: str) -> None:
        """Frees an adapter's memory, on the device and the host, once nobody uses it. Its pin ends."""
        self._host_cache.unpin(digest)
        self._warm.pop(digest, None)
        entry = self._entries.get(digest)
        if entry is None:
            self._host.forget(digest)
        else:
            entry.is_forgotten = True
            self._drop_if_forgotten(entry)

    def poll(self) -> list[AdapterFailure]:
        """Moves every adapter as far as it goes without waiting; returns those that failed, which are dropped."""
        failures = []
        for arrival in self._host.poll():
            failures += self._take(arrival)
        for entry in [e for e in self._entries.values() if e.work is not None and e.work.done()]:
            failures += self._finish_copy(entry)
        # Only then: what has just come and nobody uses any more may have to leave for those that wait.
        for entry in [entry for entry in self._entries.values() if entry.stage is Stage.STAGED]:
            self._place(entry)
        self._bring_warm()
        return failures

    def close(self) -> None:
        """Starts nothing more. Waits for copies under way, and not for reads: a disk may hang."""
        self._host.close()
        self._writer.close()

    @property
    def num_users(self) -> dict[str, int]:
        """How often each adapter that is in use has been acquired and not released, by digest."""
        return {digest: entry.num_users for digest, entry in self._entries.items() if entry.num_users}

    def check_invariants(self) -> None:
        self._pool.check_invariants([entry.pages for entry in self._entries.values()])
        for entry in self._entries.values():
            entry.check_invariants()

    def _take(self, arrival: Arrival) -> list[AdapterFailure]:
        """What has come to host memory, or has not, goes to those who wait for it."""
        ref, result = arrival.ref, arrival.result
        entry = self._entries.get(ref.digest)
        is_awaited = entry is not None and entry.stage is Stage.COMING
        if isinstance(result, BaseException):
            if is_awaited:
                del self._entries[ref.digest]
                return [_failure(ref, result)]
            if arrival.for_device:
                log.warning("adapter %s can't be warmed: %s", ref.digest, result)
        elif entry is not None and is_awaited:
            entry.copy, entry.stage = result, Stage.STAGED
        else:
            self._host_cache.release(result)
            if arrival.for_device:
                self._warm[ref.digest] = ref
        return []

    def _finish_copy(self, entry: AdapterEntry) -> list[AdapterFailure]:
        work, entry.work = entry.work, None
        assert work is not None
        if entry is self._warming:
            self._warming = None
        self._let_go(entry)
        if (error := work.exception()) is not None:
            self._leave(entry)
            return [_failure(entry.ref, error)]
        entry.stage = Stage.RESIDENT
        self._drop_if_forgotten(entry)
        return []

    def _let_go(self, entry: AdapterEntry) -> None:
        """The adapter's place in host memory may go to another one."""
        if entry.copy is not None:
            self._host_cache.release(entry.copy)
            entry.copy = None

    def _leave(self, entry: AdapterEntry) -> None:
        """It is on the device no more."""
        self._let_go(entry)
        self._writer.free(entry.pages, entry.fence)
        del self._entries[entry.ref.digest]

    def _drop_if_forgotten(self, entry: AdapterEntry) -> None:
        """As soon as nobody uses it and no thread is at it."""
        if entry.is_forgotten and not entry.num_users and entry.work is None:
            self._leave(entry)
            self._host.forget(entry.ref.digest)

    def _place(self, entry: AdapterEntry) -> None:
        """Gives a staged adapter pages, evicting unused ones; without enough it stays staged, or goes if unused."""
        if entry.num_users == 0:
            self._leave(entry)
            return
        needed = pages_needed(entry.ref.ranks)
        if self._make_room(needed, keep_pinned=False):
            self._copy(entry, needed)

    def _copy(self, entry: AdapterEntry, needed: dict[LoraGroup, int]) -> None:
        """Fills pages, which are free, with a staged adapter."""
        assert entry.copy is not None
        entry.stage = Stage.COPYING
        entry.pages, entry.work = self._writer.fill(needed, entry.copy.packed)

    def _bring_warm(self) -> None:
        """One at a time: a request's copy waits for no more than one of them."""
        while self._warm and self._warming is None:
            digest = next(iter(self._warm))
            ref = self._warm.pop(digest)
            needed = pages_needed(ref.ranks)
            is_possible = digest in self._host_cache and digest not in self._entries
            if not is_possible or not self._make_room(needed, keep_pinned=True):
                continue
            if (copy := self._host_cache.get(digest)) is not None:
                entry = self._entries[digest] = self._warming = AdapterEntry(ref, copy=copy)
                self._copy(entry, needed)

    def _make_room(self, needed: dict[LoraGroup, int], *, keep_pinned: bool) -> bool:
        """Evicts unused adapters, pinned ones last, but none if even all of them were not enough."""
        unused = [e for e in self._entries.values() if e.stage is Stage.RESIDENT and e.num_users == 0]
        if keep_pinned:
            unused = [e for e in unused if not self._host_cache.is_pinned(e.ref.digest)]
        else:
            unused.sort(key=lambda e: self._host_cache.is_pinned(e.ref.digest))
        for group, count in needed.items():
            reclaimable = sum(len(entry.pages.get(group, [])) for entry in unused)
            if count > self._pool.groups[group].pages.num_free + reclaimable:
                return False
        for entry in unused:
            if self._pool.fits(needed):
                break
            self._leave(entry)
        return True


def _failure(ref: AdapterRef, error: BaseException) -> AdapterFailure:
    """Logged here, once for all the requests that wait for the adapter: what they are told names no folder."""
    log.warning("adapter %s can't be loaded: %s", ref.digest, error)
    return AdapterFailure.of(ref, error)
