"""Adapters in host memory, packed and ready to be copied to the device: least recently used go first."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

import torch
from torch import Tensor

from punica_serve.engine.byte_arena import ByteArena
from punica_serve.engine.packing import PackedAdapter
from punica_serve.engine.pinned_memory import HostMemory

#: Of the budget. The rest is for all other adapters, however many are pinned.
_MAX_PINNED_SHARE = 0.5


@dataclass(slots=True, eq=False)
class HostCopy:
    """A packed adapter that someone holds: its memory is not used for another one until it is released."""

    digest: str
    packed: PackedAdapter
    num_bytes: int
    #: Where it is in the cache's memory; None if it found no place there, and lives as long as it is held.
    start: int | None
    num_holders: int = 1
    #: Nobody can get it any more, and its memory goes with its last holder.
    is_forgotten: bool = False


class HostCache:
    """The budget is the memory it is given, shared by the loader's threads.

    An adapter that finds no place, since it is too large or all others are held or pinned, is made in ordinary memory
    and not kept: slower to copy, and right all the same.
    """

    def __init__(self, memory: HostMemory) -> None:
        self._memory = memory
        self._arena = ByteArena(len(memory.bytes))
        self._copies: OrderedDict[str, HostCopy] = OrderedDict()  # least recently used first
        #: Digest -> bytes. They may be on their way.
        self._pinned: dict[str, int] = {}
        #: What has come or left since ``take_changes``.
        self._changed: set[str] = set()
        self._lock = Lock()

    @property
    def used_bytes(self) -> int:
        with self._lock:
            return self._arena.used_bytes

    def __contains__(self, digest: str) -> bool:
        """Without using it."""
        return digest in self._copies

    @property
    def digests(self) -> tuple[str, ...]:
        """What is here."""
        with self._lock:
            return tuple(self._copies)

    def take_changes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What is here that was not when this was last asked, and the other way round. Some may have been told before.

        Cheap when there is nothing to tell.
        """
        if not self._changed:
            return (), ()
        with self._lock:
            changed, self._changed = sorted(self._changed), set()
            here = tuple(digest for digest in changed if digest in self._copies)
            return here, tuple(digest for digest in changed if digest not in self._copies)

    def pin(self, digest: str, num_bytes: int) -> bool:
        """Keeps an adapter, from when it is here. False, and nothing is done, if too much is pinned already."""
        with self._lock:
            others = sum(self._pinned.values()) - self._pinned.get(digest, 0)
            if others + num_bytes > _MAX_PINNED_SHARE * len(self._memory.bytes):
                return False
            self._pinned[digest] = num_bytes
            return True

    def unpin(self, digest: str) -> None:
        """It leaves as others do again."""
        with self._lock:
            self._pinned.pop(digest, None)

    def is_pinned(self, digest: str) -> bool:
        return digest in self._pinned

    def forget(self, digest: str) -> None:
        """Frees an adapter's memory, once nobody holds it. Its pin ends."""
        with self._lock:
            self._pinned.pop(digest, None)
            copy = self._copies.pop(digest, None)
            if copy is None:
                return
            copy.is_forgotten = True
            if not copy.num_holders:
                self._free(copy)

    def get(self, digest: str) -> HostCopy | None:
        """The adapter, held once more, if it is here."""
        with self._lock:
            copy = self._copies.get(digest)
            if copy is not None:
                self._copies.move_to_end(digest)
                copy.num_holders += 1
            return copy

    def make(self, digest: str, num_bytes: int, pack: Callable[[Tensor], PackedAdapter]) -> HostCopy:
        """Packs an adapter that is not here into uint8 [num_bytes] and keeps it if it can; held once.

        What ``pack`` raises goes on to the caller.
        """
        with self._lock:
            start = self._take(num_bytes)
        if start is None:
            return HostCopy(digest, pack(torch.empty(num_bytes, dtype=torch.uint8)), num_bytes, None)
        try:
            copy = HostCopy(digest, pack(self._memory.bytes[start : start + num_bytes]), num_bytes, start)
        except BaseException:
            with self._lock:
                self._arena.free(start, num_bytes)
            raise
        with self._lock:
            assert digest not in self._copies, f"adapter {digest} was read twice at once"
            self._copies[digest] = copy
            self._changed.add(digest)
        return copy

    def release(self, copy: HostCopy) -> None:
        """One holder less."""
        with self._lock:
            copy.num_holders -= 1
            if copy.is_forgotten and not copy.num_holders:
                self._free(copy)

    def close(self) -> None:
        """Unpins the memory. No copy from it may be under way."""
        self._memory.close()

    def _take(self, num_bytes: int) -> int | None:
        """A piece of the memory, at the cost of the adapters that nobody holds and nobody has pinned."""
        if not self._arena.could_fit(num_bytes):
            return None
        while (start := self._arena.allocate(num_bytes)) is None:
            unused = (copy for copy in self._copies.values() if not copy.num_holders)
            oldest = next((copy for copy in unused if copy.digest not in self._pinned), None)
            if oldest is None:
                return None
            self._free(self._copies.pop(oldest.digest))
        return start

    def _free(self, copy: HostCopy) -> None:
        assert copy.start is not None, "what has no place is never kept"
        self._arena.free(copy.start, copy.num_bytes)
        self._changed.add(copy.digest)
