"""Brings adapters to the device while steps go on: disk -> host cache -> pages of the LoRA pool.

Reading, checking, packing and copying happen on the loader's threads; the step loop only calls ``poll``, which moves
finished work on and never waits. An adapter that a running request uses is pinned; the others leave, least recently
used first, when their pages are wanted.
"""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum, auto

import torch

from punica_serve.adapters.folder import load_adapter
from punica_serve.engine.host_cache import HostCache
from punica_serve.engine.lora_pool import AdapterPages, LoraPool
from punica_serve.engine.packing import PackedAdapter, pack_adapter
from punica_serve.errors import AdapterRejected, PunicaError, RequestFailed
from punica_serve.lora_layout import pages_needed
from punica_serve.model_config import ModelConfig
from punica_serve.protocol import AdapterRef, LoraGroup

#: Enough to keep one slow disk read from delaying the next adapter; more would only share the same disk.
_NUM_THREADS = 4


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
    stage: _Stage = _Stage.READING
    work: "Future[PackedAdapter] | Future[None] | None" = None
    packed: PackedAdapter | None = None
    pages: AdapterPages = field(default_factory=dict)


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
    ) -> None:
        self._pool = pool
        self._host_cache = host_cache
        self._model = model
        self._dtype = dtype
        self._on_progress = on_progress
        self._entries: dict[str, _Entry] = {}  # least recently used first
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="adapter-loader")

    @property
    def resident(self) -> tuple[str, ...]:
        """Digests of the adapters on the device, sorted: it changes when one comes or leaves, not when one is used."""
        return tuple(sorted(digest for digest, entry in self._entries.items() if entry.stage is _Stage.RESIDENT))

    def pages(self, digest: str) -> AdapterPages:
        """Pages of an adapter that is ready."""
        return self._entries[digest].pages

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
            entry = _Entry(ref)
            self._start(entry, self._threads.submit(self._read, ref))
        entry.num_users += 1
        self._entries[ref.digest] = entry

    def release(self, digest: str) -> None:
        """One request less. Ignored for an adapter that failed meanwhile."""
        entry = self._entries.pop(digest, None)
        if entry is not None:
            entry.num_users -= 1
            self._entries[digest] = entry  # used until now: the last to leave

    def poll(self) -> list[AdapterFailure]:
        """Moves every adapter as far as it goes without waiting; returns those that failed, which are forgotten."""
        failures = []
        for digest, entry in list(self._entries.items()):
            if entry.work is not None and entry.work.done():
                failure = self._finish_work(entry)
                if failure is not None:
                    failures.append(failure)
                    del self._entries[digest]
                    continue
            if entry.stage is _Stage.STAGED:
                self._place(entry)
        return failures

    def close(self) -> None:
        """Starts nothing more. Does not wait for reads under way: a disk may hang."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def check_invariants(self) -> None:
        self._pool.check_invariants([entry.pages for entry in self._entries.values()])
        for digest, entry in self._entries.items():
            assert entry.num_users >= 0, f"adapter {digest} released more often than acquired"

    def _read(self, ref: AdapterRef) -> PackedAdapter:
        """On a thread."""
        packed = self._host_cache.get(ref.digest)
        if packed is None:
            packed = pack_adapter(load_adapter(ref, self._model), self._model, self._dtype)
            self._host_cache.put(ref.digest, packed)
        return packed

    def _start(self, entry: _Entry, work: "Future[PackedAdapter] | Future[None]") -> None:
        entry.work = work
        work.add_done_callback(lambda _: self._on_progress())

    def _finish_work(self, entry: _Entry) -> AdapterFailure | None:
        work, entry.work = entry.work, None
        assert work is not None
        error = work.exception()
        if error is not None:
            self._pool.free(entry.pages)
            told = RequestFailed(f"the adapter can't be loaded: {error}", param="lora_id")
            return AdapterFailure(entry.ref.digest, isinstance(error, AdapterRejected), told)
        if entry.stage is _Stage.READING:
            entry.packed, entry.stage = work.result(), _Stage.STAGED
        else:
            entry.packed, entry.stage = None, _Stage.RESIDENT
        return None

    def _place(self, entry: _Entry) -> None:
        """Gives a staged adapter pages, evicting unused ones; without enough it stays staged, or goes if unused."""
        if entry.num_users == 0:
            del self._entries[entry.ref.digest]
            return
        needed = pages_needed(entry.ref.ranks)
        if not self._make_room(needed):
            return
        assert entry.packed is not None
        entry.pages, entry.stage = self._pool.allocate(needed), _Stage.COPYING
        self._start(entry, self._threads.submit(self._pool.write, entry.pages, entry.packed))

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
            del self._entries[entry.ref.digest]
        return True
