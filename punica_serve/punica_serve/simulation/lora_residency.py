"""Which adapters are on a simulated GPU, and when those on their way will be.

As the engine's loader does it: an adapter of a running request stays, the others leave, least recently used first and
pinned ones last, when their pages are wanted. Copies go over one link, one after the other, beside the steps.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from punica_serve.lora_layout import pages_needed
from punica_serve.protocol import AdapterRef, LoraGroup
from punica_serve.simulation.host_memory import SimulatedHostMemory
from punica_serve.simulation.profile import AdapterLoad


@dataclass(slots=True)
class _Entry:
    pages: Mapping[LoraGroup, int]
    num_users: int = 0
    #: It leaves, host memory too, with its last user.
    is_forgotten: bool = False


class LoraResidency:
    """The LoRA pool of one simulated GPU. ``settle`` tells it the time."""

    def __init__(self, num_pages: Mapping[LoraGroup, int], load: AdapterLoad) -> None:
        self._num_pages = num_pages
        self._load = load
        self._entries: dict[str, _Entry] = {}  # least recently used first
        #: Digest -> when its copy ends, in that order.
        self._loading: dict[str, float] = {}
        self._link_free_s = 0.0
        self._pinned: set[str] = set()
        self.host = SimulatedHostMemory()
        #: Pages of all entries, and of those in use.
        self._held: Counter[LoraGroup] = Counter()
        self._used: Counter[LoraGroup] = Counter()
        #: Digests of the adapters that are there, sorted.
        self.resident: tuple[str, ...] = ()

    @property
    def next_ready_s(self) -> float | None:
        """When the next copy ends."""
        return next(iter(self._loading.values()), None)

    def is_ready(self, digest: str | None) -> bool:
        return digest is None or (digest in self._entries and digest not in self._loading)

    def could_hold(self, ref: AdapterRef) -> bool:
        """Whether the empty pool would have room for it."""
        return all(count <= self._num_pages.get(group, 0) for group, count in _pages_of(ref).items())

    def has_room_for(self, ref: AdapterRef) -> bool:
        """Whether the pool holds this adapter beside all that are in use."""
        entry = self._entries.get(ref.digest)
        if entry is not None and entry.num_users:
            return True
        used, total = self._used, self._num_pages
        return all(count + used[group] <= total.get(group, 0) for group, count in _pages_of(ref).items())

    def acquire(self, ref: AdapterRef, now_s: float) -> None:
        """One more request uses the adapter, for which there is room: it comes if it is not there."""
        entry = self._entries.pop(ref.digest, None) or self._bring(ref, now_s, keep_pinned=False)
        self._entries[ref.digest] = entry
        entry.num_users += 1
        if entry.num_users == 1:
            self._used.update(entry.pages)

    def release(self, digest: str) -> None:
        """One request less."""
        entry = self._entries.pop(digest)
        self._entries[digest] = entry  # used until now: the last to leave
        entry.num_users -= 1
        if not entry.num_users:
            self._used.subtract(entry.pages)
            if entry.is_forgotten:
                self._drop(digest)

    def warm(self, ref: AdapterRef, now_s: float, *, pin: bool | None) -> None:
        """Brings an adapter to host memory, and here if those that are used or pinned leave room; see the engine."""
        digest = ref.digest
        if pin is False:
            self._pinned.discard(digest)
            return
        if pin:
            self._pinned.add(digest)
        self.host.add(digest)
        if (entry := self._entries.get(digest)) is not None:
            entry.is_forgotten = False
        elif self._has_room_beside_pinned(_pages_of(ref)):
            self._entries[digest] = self._bring(ref, now_s, keep_pinned=True)

    def forget(self, digest: str) -> None:
        """Frees an adapter's memory, here and on the host, once nobody uses it. Its pin ends."""
        self._pinned.discard(digest)
        entry = self._entries.get(digest)
        if entry is not None and entry.num_users:
            entry.is_forgotten = True
        elif entry is not None:
            self._drop(digest)
        else:
            self.host.forget(digest)

    def settle(self, now_s: float) -> None:
        """Copies that have ended by now are there."""
        while self._loading:
            digest, ready_s = next(iter(self._loading.items()))
            if ready_s > now_s:
                return
            del self._loading[digest]
            self._note_resident()

    def check_invariants(self) -> None:
        for group, count in self._num_pages.items():
            held = sum(entry.pages.get(group, 0) for entry in self._entries.values())
            assert held == self._held[group] <= count, f"{held} LoRA pages of {group} held, {self._held[group]} booked"

    def _bring(self, ref: AdapterRef, now_s: float, *, keep_pinned: bool) -> _Entry:
        pages = _pages_of(ref)
        self._make_room(pages, keep_pinned=keep_pinned)
        self.host.add(ref.digest)
        self._held.update(pages)
        self._link_free_s = max(now_s, self._link_free_s) + self._load.copy_s(ref.num_bytes)
        self._loading[ref.digest] = self._link_free_s
        return _Entry(pages)

    def _has_room_beside_pinned(self, wanted: Mapping[LoraGroup, int]) -> bool:
        taken = Counter[LoraGroup]()
        for digest, entry in self._entries.items():
            if entry.num_users or digest in self._pinned:
                taken.update(entry.pages)
        return all(count + taken[group] <= self._num_pages.get(group, 0) for group, count in wanted.items())

    def _make_room(self, wanted: Mapping[LoraGroup, int], *, keep_pinned: bool) -> None:
        unused = [digest for digest, entry in self._entries.items() if not entry.num_users]
        if keep_pinned:
            unused = [digest for digest in unused if digest not in self._pinned]
        else:
            unused.sort(key=self._pinned.__contains__)
        for digest in unused:
            if all(count + self._held[group] <= self._num_pages[group] for group, count in wanted.items()):
                return
            self._evict(digest)

    def _evict(self, digest: str) -> None:
        self._held.subtract(self._entries.pop(digest).pages)
        if self._loading.pop(digest, None) is None:
            self._note_resident()

    def _drop(self, digest: str) -> None:
        self._evict(digest)
        self.host.forget(digest)

    def _note_resident(self) -> None:
        self.resident = tuple(sorted(digest for digest in self._entries if digest not in self._loading))


@lru_cache(maxsize=4096)
def _pages_by_ranks(ranks: tuple[tuple[str, int], ...]) -> Mapping[LoraGroup, int]:
    return pages_needed(dict(ranks))


def _pages_of(ref: AdapterRef) -> Mapping[LoraGroup, int]:
    return _pages_by_ranks(tuple(ref.ranks.items()))
