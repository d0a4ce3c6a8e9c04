"""The adapters of a device by digest, least recently used first, and the pages that they take."""

from collections import Counter
from collections.abc import Iterable, Mapping

from punica_serve.base_model.lora_layout import pages_needed
from punica_serve.engine.adapters.entry import AdapterEntry, AdapterState
from punica_serve.engine.adapters.lora_pool import AdapterPages, LoraPool
from punica_serve.protocol import AdapterRef, LoraGroup


class AdapterTable:
    """Filled by the loader alone. Others ask it between two steps, on the step loop's thread."""

    def __init__(self, pool: LoraPool) -> None:
        self._pool = pool
        self._entries: dict[str, AdapterEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, digest: str) -> bool:
        return digest in self._entries

    def __getitem__(self, digest: str) -> AdapterEntry:
        return self._entries[digest]

    def get(self, digest: str) -> AdapterEntry | None:
        return self._entries.get(digest)

    def put_last(self, entry: AdapterEntry) -> None:
        """Adds an entry, or moves it behind the others: it is in use, or was until now."""
        self._entries.pop(entry.ref.digest, None)
        self._entries[entry.ref.digest] = entry

    def remove(self, digest: str) -> None:
        del self._entries[digest]

    def in_state(self, state: AdapterState) -> list[AdapterEntry]:
        return [entry for entry in self._entries.values() if entry.state is state]

    def copied(self) -> list[AdapterEntry]:
        """Entries whose copies have ended, well or not."""
        return [entry for entry in self._entries.values() if entry.has_copied]

    @property
    def resident(self) -> tuple[str, ...]:
        """Digests of the adapters on the device, sorted: it changes with loads and evictions, not with uses."""
        return tuple(sorted(entry.ref.digest for entry in self.in_state(AdapterState.RESIDENT)))

    @property
    def refcounts(self) -> dict[str, int]:
        """The references of each adapter in use, by digest."""
        return {digest: entry.refcount for digest, entry in self._entries.items() if entry.refcount}

    @property
    def is_copying(self) -> bool:
        """Whether an adapter that a request waits for is being copied to the device, from host memory or a file."""
        return any(entry.is_on_its_way and entry.refcount for entry in self._entries.values())

    @property
    def has_unfinished_copies(self) -> bool:
        """Whether such a copy goes on at this moment: other than ``is_copying``, it needs no ``poll`` to change."""
        return any(entry.refcount and entry.is_filling for entry in self._entries.values())

    def is_ready(self, digest: str) -> bool:
        """Whether any step may use the adapter."""
        entry = self._entries.get(digest)
        return entry is not None and entry.is_ready

    def pages(self, digest: str) -> AdapterPages:
        """Pages of an adapter that is ready."""
        return self._entries[digest].pages

    @property
    def pages_by_digest(self) -> dict[str, AdapterPages]:
        """The pages of all adapters that have some."""
        return {digest: entry.pages for digest, entry in self._entries.items() if entry.pages}

    def has_room_for(self, ref: AdapterRef) -> bool:
        """Whether the pool can hold this adapter beside all that are in use."""
        used = [e.num_pages for e in self._entries.values() if e.refcount and e.ref.digest != ref.digest]
        needed, total = pages_needed(ref.ranks), self._pool.num_pages
        return all(
            count + sum([pages.get(group, 0) for pages in used]) <= total[group] for group, count in needed.items()
        )

    @property
    def unused(self) -> list[AdapterEntry]:
        """Entries on the device that no request uses."""
        return [entry for entry in self.in_state(AdapterState.RESIDENT) if not entry.refcount]

    def is_enough(self, evicted: Iterable[AdapterEntry], needed: Mapping[LoraGroup, int]) -> bool:
        """Whether as many pages are free once these adapters are evicted."""
        freed = Counter[LoraGroup]()
        for entry in evicted:
            freed.update({group: len(pages) for group, pages in entry.pages.items()})
        groups = self._pool.groups
        return all(count <= groups[group].pages.num_free + freed[group] for group, count in needed.items())

    def check_invariants(self) -> None:
        """Audits the pool's pages and every entry. Raises AssertionError on the first error."""
        self._pool.check_invariants([entry.pages for entry in self._entries.values()])
        for entry in self._entries.values():
            entry.check_invariants()
