"""The adapters on a simulated GPU, and when those that are being loaded will be ready.

The rules are those of the engine's loader: adapters of running requests stay; the others are evicted when their pages
are needed, least recently used first and pinned ones last. Copies go over one link, one at a time, during the steps.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from punica_serve.base_model.lora_layout import pages_needed
from punica_serve.errors.invariants import require
from punica_serve.performance.profile import AdapterLoad
from punica_serve.protocol import AdapterRef, LoraGroup
from punica_serve.simulation.host_memory import SimulatedHostMemory


@dataclass(slots=True)
class _Entry:
    pages: Mapping[LoraGroup, int]
    refcount: int = 0
    #: It is evicted, from host memory too, after its last request.
    is_evicting: bool = False


class LoraResidency:
    """The LoRA pool of one simulated GPU. ``settle`` tells it the time."""

    def __init__(self, num_pages: Mapping[LoraGroup, int], load: AdapterLoad) -> None:
        self._num_pages = num_pages
        self._adapter_load = load
        self._entries: dict[str, _Entry] = {}  # least recently used first
        #: Digest -> when its copy ends, in that order.
        self._loading: dict[str, float] = {}
        self._link_free_s = 0.0
        self._pinned: set[str] = set()
        self.host = SimulatedHostMemory()
        #: Pages of all entries, and of entries in use.
        self._held: Counter[LoraGroup] = Counter()
        self._used: Counter[LoraGroup] = Counter()
        #: Digests of the loaded adapters, sorted.
        self.resident: tuple[str, ...] = ()

    @property
    def next_ready_s(self) -> float | None:
        """The time at which the next copy ends."""
        return next(iter(self._loading.values()), None)

    def is_ready(self, digest: str | None) -> bool:
        return digest is None or (digest in self._entries and digest not in self._loading)

    def could_hold(self, ref: AdapterRef) -> bool:
        """Whether an empty pool would have room for the adapter."""
        return all(count <= self._num_pages.get(group, 0) for group, count in _pages_of(ref).items())

    def has_room_for(self, ref: AdapterRef) -> bool:
        """Whether the pool has room for this adapter besides all that are in use."""
        entry = self._entries.get(ref.digest)
        if entry is not None and entry.refcount:
            return True
        used, total = self._used, self._num_pages
        return all(count + used[group] <= total.get(group, 0) for group, count in _pages_of(ref).items())

    def acquire(self, ref: AdapterRef, now_s: float) -> None:
        """Counts one more request of the adapter, and loads it if needed. There must be room for it."""
        entry = self._entries.pop(ref.digest, None) or self._load(ref, now_s, keep_pinned=False)
        self._entries[ref.digest] = entry
        entry.refcount += 1
        if entry.refcount == 1:
            self._used.update(entry.pages)

    def release(self, digest: str) -> None:
        """Counts one request of the adapter less."""
        entry = self._entries.pop(digest)
        self._entries[digest] = entry  # now the most recently used
        entry.refcount -= 1
        if not entry.refcount:
            self._used.subtract(entry.pages)
            if entry.is_evicting:
                self._drop(digest)

    def prefetch(self, ref: AdapterRef, now_s: float, *, pin: bool | None) -> None:
        """Loads an adapter to host memory, and to the GPU if adapters in use or pinned leave room."""
        digest = ref.digest
        if pin is False:
            self._pinned.discard(digest)
            return
        if pin:
            self._pinned.add(digest)
        self.host.add(digest)
        if (entry := self._entries.get(digest)) is not None:
            entry.is_evicting = False
        elif self._has_room_beside_pinned(_pages_of(ref)):
            self._entries[digest] = self._load(ref, now_s, keep_pinned=True)

    def evict(self, digest: str) -> None:
        """Evicts an adapter from GPU and host memory once no request uses it, and unpins it."""
        self._pinned.discard(digest)
        entry = self._entries.get(digest)
        if entry is not None and entry.refcount:
            entry.is_evicting = True
        elif entry is not None:
            self._drop(digest)
        else:
            self.host.evict(digest)

    def settle(self, now_s: float) -> None:
        """Completes the copies that end by now."""
        while self._loading:
            digest, ready_s = next(iter(self._loading.items()))
            if ready_s > now_s:
                return
            del self._loading[digest]
            self._update_resident()

    def check_invariants(self) -> None:
        for group, count in self._num_pages.items():
            held = sum(entry.pages.get(group, 0) for entry in self._entries.values())
            require(
                held == self._held[group] <= count, f"{held} LoRA pages of {group} held, {self._held[group]} counted"
            )

    def _load(self, ref: AdapterRef, now_s: float, *, keep_pinned: bool) -> _Entry:
        pages = _pages_of(ref)
        self._make_room(pages, keep_pinned=keep_pinned)
        self.host.add(ref.digest)
        self._held.update(pages)
        self._link_free_s = max(now_s, self._link_free_s) + self._adapter_load.copy_s(ref.num_bytes)
        self._loading[ref.digest] = self._link_free_s
        return _Entry(pages)

    def _has_room_beside_pinned(self, wanted: Mapping[LoraGroup, int]) -> bool:
        taken = Counter[LoraGroup]()
        for digest, entry in self._entries.items():
            if entry.refcount or digest in self._pinned:
                taken.update(entry.pages)
        return all(count + taken[group] <= self._num_pages.get(group, 0) for group, count in wanted.items())

    def _make_room(self, wanted: Mapping[LoraGroup, int], *, keep_pinned: bool) -> None:
        unused = [digest for digest, entry in self._entries.items() if not entry.refcount]
        if keep_pinned:
            unused = [digest for digest in unused if digest not in self._pinned]
        else:
            unused.sort(key=self._pinned.__contains__)
        for digest in unused:
            if all(count + self._held[group] <= self._num_pages[group] for group, count in wanted.items()):
                return
            self._unload(digest)

    def _unload(self, digest: str) -> None:
        self._held.subtract(self._entries.pop(digest).pages)
        if self._loading.pop(digest, None) is None:
            self._update_resident()

    def _drop(self, digest: str) -> None:
        self._unload(digest)
        self.host.evict(digest)

    def _update_resident(self) -> None:
        self.resident = tuple(sorted(digest for digest in self._entries if digest not in self._loading))


@lru_cache(maxsize=4096)
def _pages_by_ranks(ranks: tuple[tuple[str, int], ...]) -> Mapping[LoraGroup, int]:
    return pages_needed(dict(ranks))


def _pages_of(ref: AdapterRef) -> Mapping[LoraGroup, int]:
    return _pages_by_ranks(tuple(ref.ranks.items()))
