"""Brings adapters to the device while steps go on: disk -> host cache -> pages of the LoRA pool.

Reading, checking, packing and copying happen on the loader's threads; the step loop only calls ``poll``, which moves
finished work on and never waits. An adapter that a running request uses is pinned; the others leave, least recently
used first, when their pages are wanted.

Where steps run ahead, one may still read the pages of an adapter that its last user has released. So the loader asks
for a *fence* at that moment, the end of the newest launched step: later steps don't have the adapter. Whoever gets
pages afterwards is written once the fences of all that have left are passed, and on the device only: no thread waits.
"""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import cast

import torch

from punica_serve.engine.adapter_reader import AdapterReader
from punica_serve.engine.host_cache import HostCache, HostCopy
from punica_serve.engine.lora_pool import AdapterPages, LoraPool
from punica_serve.errors import AdapterRejected, PunicaError, RequestFailed
from punica_serve.lora_layout import pages_needed
from punica_serve.model_config import ModelConfig
from punica_serve.protocol import AdapterRef, LoraGroup

#: The end of the newest step that the device was given; None if it is known to have ended.
Fence = Callable[[], torch.cuda.Event | None]

#: One hands its copies to the device while the other waits for its own to end.
_NUM_COPIERS = 2
#: Of the readers; the others stay free for adapters that running requests wait for.
_PREFETCH_SHARE = 0.75
#: Adapters that were prefetched and not used since; beyond it the first are forgotten, and may be read in vain again.
_MAX_REMEMBERED = 4096


class _Stage(Enum):
    """An adapter goes through these in order; it may be dropped at STAGED, and evicted at RESIDENT, when unused."""

    READING = auto()  # a thread reads and packs it
    STAGED = auto()  # packed on the host, waits for pages
    COPYING = auto()  # has pages, a thread fills them
    RESIDENT = auto()


@dataclass(slots=True)
class _Entry:
    ref: AdapterRef
    num_users: int = 0
    #: Whether its reading was started by a prefetch.
    was_prefetched: bool = False
    #: Whether anyone has acquired it: if not, its failure is nobody's.
    was_acquired: bool = False
    stage: _Stage = _Stage.READING
    work: "Future[HostCopy] | Future[None] | None" = None
    #: Held from STAGED to RESIDENT.
    copy: HostCopy | None = None
    pages: AdapterPages = field(default_factory=dict)
    #: The end of the last step that may read the pages, once nobody uses the adapter.
    fence: torch.cuda.Event | None = None


@dataclass(frozen=True, slots=True)
class AdapterFailure:
    """An adapter that could not be brought. ``permanent``: its bytes are wrong, so no other device will do better."""

    digest: str
    permanent: bool
    error: PunicaError


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
    ) -> None:
        self._pool = pool
        self._host_cache = host_cache
        self._on_progress = on_progress
        self._fence = fence
        self._entries: dict[str, _Entry] = {}  # least recently used first
        #: Of adapters that have left, as far as they may not be passed.
        self._fences: list[torch.cuda.Event] = []
        self._prefetched: dict[str, None] = {}
        self._num_prefetching = 0
        self._reader = AdapterReader(host_cache, model, dtype, pool.device)
        self._max_prefetching = int(_PREFETCH_SHARE * self._reader.num_threads)
        self._copiers = ThreadPoolExecutor(_NUM_COPIERS, "adapter-copier")

    @property
    def resident(self) -> tuple[str, ...]:
        """Digests of the adapters on the device, sorted: it changes when one comes or leaves, not when one is used."""
        return tuple(sorted(digest for digest, entry in self._entries.items() if entry.stage is _Stage.RESIDENT))

    def pages(self, digest: str) -> AdapterPages:
        """Pages of an adapter that is ready."""
        return self._entries[digest].pages

    @property
    def is_copying(self) -> bool:
        """Whether an adapter is on its way from host memory to the device."""
        return any(entry.stage is _Stage.COPYING for entry in self._entries.values())

    def is_ready(self, digest: str) -> bool:
        entry = self._entries.get(digest)
        return entry is not None and entry.stage is _Stage.RESIDENT

    def has_room_for(self, ref: AdapterRef) -> bool:
        """Whether the pool holds this adapter beside all that requests use now: then it will come."""
        needed = pages_needed(ref.ranks)
        used = [e for e in self._entries.values() if e.num_users and e.ref.digest != ref.digest]
        taken = Counter[LoraGroup]()
        for entry in used:
            taken.update(pages_needed(entry.ref.ranks))
        return all(count + taken[group] <= self._pool.num_pages[group] for group, count in needed.items())

    def acquire(self, ref: AdapterRef) -> None:
        """One more request uses the adapter: starts to bring it if need be and pins it until ``release``."""
        entry = self._entries.pop(ref.digest, None)
        if entry is None:
            entry = _Entry(ref, copy=self._host_cache.get(ref.digest))
            if entry.copy is None:
                self._start(entry, self._reader.start(ref))
            else:
                entry.stage = _Stage.STAGED
        entry.num_users += 1
        entry.was_acquired = True
        self._entries[ref.digest] = entry
        self._prefetched.pop(ref.digest, None)
        if entry.stage is _Stage.STAGED:
            self._place(entry)

    def release(self, digest: str) -> None:
        """One request less. Ignored for an adapter that failed meanwhile."""
        entry = self._entries.pop(digest, None)
        if entry is not None:
            entry.num_users -= 1
            if entry.num_users == 0:
                entry.fence = self._fence()
            self._entries[digest] = entry  # used until now: the last to leave

    def prefetch(self, ref: AdapterRef) -> None:
        """Reads an adapter that will be acquired soon into host memory: a hint, cheap to repeat.

        Ignored while enough others are under way. Whatever is wrong with it is told when it is acquired.
        """
        digest = ref.digest
        if digest in self._prefetched or digest in self._entries or self._num_prefetching >= self._max_prefetching:
            return
        self._prefetched[digest] = None
        if len(self._prefetched) > _MAX_REMEMBERED:
            del self._prefetched[next(iter(self._prefetched))]
        if digest in self._host_cache:
            return
        entry = self._entries[digest] = _Entry(ref, was_prefetched=True)
        self._num_prefetching += 1
        self._start(entry, self._reader.start(ref))

    def poll(self) -> list[AdapterFailure]:
        """Moves every adapter as far as it goes without waiting; returns those that failed, which are forgotten."""
        failures = []
        for digest, entry in list(self._entries.items()):
            if entry.work is not None and entry.work.done():
                error = self._finish_work(entry)
                if error is not None:
                    del self._entries[digest]
                    if entry.was_acquired:
                        failures.append(_failure(entry.ref, error))
        # Only then: what has just come and nobody uses any more may have to leave for those that wait.
        for entry in [entry for entry in self._entries.values() if entry.stage is _Stage.STAGED]:
            self._place(entry)
        return failures

    def close(self) -> None:
        """Starts nothing more. Waits for copies under way, and not for reads: a disk may hang."""
        self._reader.close()
        self._copiers.shutdown(cancel_futures=True)
        self._pool.synchronize()

    @property
    def num_users(self) -> dict[str, int]:
        """How often each adapter that is in use has been acquired and not released, by digest."""
        return {digest: entry.num_users for digest, entry in self._entries.items() if entry.num_users}

    def check_invariants(self) -> None:
        self._pool.check_invariants([entry.pages for entry in self._entries.values()])
        for digest, entry in self._entries.items():
            assert entry.num_users >= 0, f"adapter {digest} released more often than acquired"
            is_copied_from = entry.stage in (_Stage.STAGED, _Stage.COPYING)
            assert is_copied_from == (entry.copy is not None), f"adapter {digest} holds host memory it has no use for"

    def _start(self, entry: _Entry, work: "Future[HostCopy] | Future[None]") -> None:
        entry.work = work
        work.add_done_callback(lambda _: self._on_progress())

    def _finish_work(self, entry: _Entry) -> BaseException | None:
        """Moves an entry whose work is done to the next stage, or returns what went wrong; then it holds nothing."""
        work, entry.work = entry.work, None
        assert work is not None
        error = work.exception()
        if entry.stage is _Stage.READING:
            self._num_prefetching -= entry.was_prefetched
        else:
            self._let_go(entry)
        if error is not None:
            self._pool.free(entry.pages)
            return error
        if entry.stage is _Stage.READING:
            entry.copy, entry.stage = cast("HostCopy", work.result()), _Stage.STAGED
        else:
            entry.stage = _Stage.RESIDENT
        return None

    def _let_go(self, entry: _Entry) -> None:
        """The adapter's place in host memory may go to another one."""
        assert entry.copy is not None
        self._host_cache.release(entry.copy)
        entry.copy = None

    def _place(self, entry: _Entry) -> None:
        """Gives a staged adapter pages, evicting unused ones; without enough it stays staged, or goes if unused."""
        assert entry.copy is not None
        if entry.num_users == 0:
            self._let_go(entry)
            del self._entries[entry.ref.digest]
            return
        needed = pages_needed(entry.ref.ranks)
        if not self._make_room(needed):
            return
        entry.pages, entry.stage = self._pool.allocate(needed), _Stage.COPYING
        self._fences = [fence for fence in self._fences if not fence.query()]
        packed, after = entry.copy.packed, tuple(self._fences)
        self._start(entry, self._copiers.submit(self._pool.write, entry.pages, packed, after))

    def _make_room(self, needed: dict[LoraGroup, int]) -> bool:
        """Evicts unused adapters, least recently used first, but none if even all of them were not enough."""
        unused = [e for e in self._entries.values() if e.stage is _Stage.RESIDENT and e.num_users == 0]
        for group, count in needed.items():
            reclaimable = sum(len(entry.pages.get(group, [])) for entry in unused)
            if count > self._pool.groups[group].pages.num_free + reclaimable:
                return False
        for entry in unused:
            if self._pool.fits(needed):
                break
            self._pool.free(entry.pages)
            if entry.fence is not None:
                self._fences.append(entry.fence)
            del self._entries[entry.ref.digest]
        return True


def _failure(ref: AdapterRef, error: BaseException) -> AdapterFailure:
    told = RequestFailed(f"the adapter can't be loaded: {error}", param="lora_id")
    return AdapterFailure(ref.digest, isinstance(error, AdapterRejected), told)
