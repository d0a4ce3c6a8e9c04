"""Adapters in host memory, packed and ready to be copied to the device. The least recently used are evicted first."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

import torch
from torch import Tensor

from punica_serve.engine.adapters.packing import PackedAdapter
from punica_serve.engine.memory.byte_arena import ByteArena
from punica_serve.engine.memory.pinned_memory import HostMemory
from punica_serve.errors import StoreUnavailable
from punica_serve.errors.invariants import require

#: Bytes that an adapter takes here which shares another one's: the least that the cache gives.
SHARED_BYTES = 4096

#: The share of the budget that pinned adapters may take. The rest is for all others.
_MAX_PINNED_SHARE = 0.5
#: Adapters that one call of the step loop evicts.
_MAX_EVICTED = 4


@dataclass(slots=True, eq=False)
class HostCopy:
    """A packed adapter. Its memory is not reused while its reference count is above 0."""

    digest: str
    packed: PackedAdapter
    num_bytes: int
    #: Its offset in the cache's memory; None if it did not fit, and exists only while it is held.
    start: int | None
    refcount: int = 1
    #: It can't be looked up any more, and is freed with its last reference.
    is_unwanted: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class HostRoom:
    """Reserved memory of the cache: uint8 [num_bytes]."""

    #: Its offset in the cache's memory.
    start: int
    memory: Tensor


class HostCache:
    """A cache over one stretch of memory, shared by the loader's threads.

    An adapter that does not fit, because it is too large or all others are held or pinned, is packed in ordinary memory
    and not cached: its copy is slower, but correct.
    """

    def __init__(self, memory: HostMemory) -> None:
        self._memory = memory
        self._arena = ByteArena(len(memory.bytes))
        self._copies: OrderedDict[str, HostCopy] = OrderedDict()  # least recently used first
        #: Digest -> bytes, of adapters that may still be loading.
        self._pinned: dict[str, int] = {}
        #: Adapters added or evicted since ``take_changes``.
        self._changed: set[str] = set()
        self._lock = Lock()

    @property
    def used_bytes(self) -> int:
        with self._lock:
            return self._arena.used_bytes

    def __contains__(self, digest: str) -> bool:
        """Whether the adapter is cached; does not count as a use."""
        return digest in self._copies

    @property
    def digests(self) -> tuple[str, ...]:
        """The cached adapters."""
        with self._lock:
            return tuple(self._copies)

    def take_changes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(added, evicted) digests since the last call. Some may have been reported before.

        Cheap if nothing has changed.
        """
        if not self._changed:
            return (), ()
        with self._lock:
            changed, self._changed = sorted(self._changed), set()
            here = tuple(digest for digest in changed if digest in self._copies)
            return here, tuple(digest for digest in changed if digest not in self._copies)

    def pin(self, digest: str, num_bytes: int) -> bool:
        """Protects an adapter from eviction once it is cached. False, without effect, if too much is pinned already."""
        with self._lock:
            others = sum(self._pinned.values()) - self._pinned.get(digest, 0)
            if others + num_bytes > _MAX_PINNED_SHARE * len(self._memory.bytes):
                return False
            self._pinned[digest] = num_bytes
            return True

    def unpin(self, digest: str) -> None:
        """Makes an adapter evictable again."""
        with self._lock:
            self._pinned.pop(digest, None)

    def is_pinned(self, digest: str) -> bool:
        return digest in self._pinned

    def evict(self, digest: str) -> None:
        """Unpins an adapter and frees its memory with its last reference."""
        with self._lock:
            self._pinned.pop(digest, None)
            copy = self._copies.pop(digest, None)
            if copy is None:
                return
            copy.is_unwanted = True
            if not copy.refcount:
                self._free(copy)

    def get(self, digest: str) -> HostCopy | None:
        """The adapter with one more reference; None if it is not cached."""
        with self._lock:
            copy = self._copies.get(digest)
            if copy is not None:
                self._copies.move_to_end(digest)
                copy.refcount += 1
            return copy

    def reserve(self, num_bytes: int) -> HostRoom | None:
        """Memory for ``make`` or ``give_back``; None if a few evictions don't give it. ``make`` evicts more.

        It takes some microseconds, so the step loop may call it.
        """
        with self._lock:
            return self._room(self._take(num_bytes, _MAX_EVICTED), num_bytes)

    def give_back(self, room: HostRoom) -> None:
        """Frees reserved memory, which nobody uses any more."""
        with self._lock:
            self._arena.free(room.start, len(room.memory))

    def make(
        self, digest: str, num_bytes: int, pack: Callable[[Tensor], PackedAdapter], room: HostRoom | None = None
    ) -> HostCopy:
        """Packs an adapter that is not cached into uint8 [num_bytes], with one reference, and caches it if it fits.

        ``room``: memory of ``num_bytes`` that was reserved for it. Errors of ``pack`` are raised to the caller.
        """
        if room is None:
            with self._lock:
                room = self._room(self._take(num_bytes), num_bytes)
        if room is None:
            return HostCopy(digest, pack(torch.empty(num_bytes, dtype=torch.uint8)), num_bytes, None)
        try:
            copy = HostCopy(digest, pack(room.memory), num_bytes, room.start)
        except BaseException:
            self.give_back(room)
            raise
        with self._lock:
            require(digest not in self._copies, f"adapter {digest} was read twice at once")
            self._copies[digest] = copy
            self._changed.add(digest)
        return copy

    def share(self, digest: str, origin: str) -> HostCopy:
        """Caches a digest that has the bytes of another, with one reference. The other is never evicted from now on.

        Raises StoreUnavailable if the other is not cached.
        """
        held = self.get(origin)
        if held is None:
            raise StoreUnavailable(f"the adapter whose bytes {digest} shares is not in host memory")
        return self.make(digest, SHARED_BYTES, lambda _: held.packed)

    def hold(self, copy: HostCopy) -> None:
        """Adds a reference to a copy that the caller holds."""
        with self._lock:
            copy.refcount += 1

    def release(self, copy: HostCopy) -> None:
        """Drops one reference."""
        with self._lock:
            copy.refcount -= 1
            if copy.is_unwanted and not copy.refcount:
                self._free(copy)

    def close(self) -> None:
        """Unpins the memory. No copy from it may be in flight."""
        self._memory.close()

    def _take(self, num_bytes: int, max_evicted: int | None = None) -> int | None:
        """Allocates memory, and evicts adapters for it that are neither held nor pinned. None if that is not enough."""
        if not self._arena.could_fit(num_bytes):
            return None
        num_evicted = 0
        while (start := self._arena.allocate(num_bytes)) is None:
            if num_evicted == max_evicted:
                return None
            unused = (copy for copy in self._copies.values() if not copy.refcount)
            oldest = next((copy for copy in unused if copy.digest not in self._pinned), None)
            if oldest is None:
                return None
            self._free(self._copies.pop(oldest.digest))
            num_evicted += 1
        return start

    def _room(self, start: int | None, num_bytes: int) -> HostRoom | None:
        return None if start is None else HostRoom(start, self._memory.bytes[start : start + num_bytes])

    def _free(self, copy: HostCopy) -> None:
        assert copy.start is not None, "an adapter outside the cache's memory is never cached"
        self._arena.free(copy.start, copy.num_bytes)
        self._changed.add(copy.digest)
