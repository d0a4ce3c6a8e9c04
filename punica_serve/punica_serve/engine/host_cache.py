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


@dataclass(slots=True, eq=False)
class HostCopy:
    """A packed adapter that someone holds: its memory is not used for another one until it is released."""

    packed: PackedAdapter
    num_bytes: int
    #: Where it is in the cache's memory; None if it found no place there, and lives as long as it is held.
    start: int | None
    num_holders: int = 1


class HostCache:
    """The budget is the memory it is given, shared by the loader's threads.

    An adapter that finds no place, since it is too large or all others are held, is made in ordinary memory and not
    kept: slower to copy, and right all the same.
    """

    def __init__(self, memory: HostMemory) -> None:
        self._memory = memory
        self._arena = ByteArena(len(memory.bytes))
        self._copies: OrderedDict[str, HostCopy] = OrderedDict()  # least recently used first
        self._lock = Lock()

    @property
    def used_bytes(self) -> int:
        with self._lock:
            return self._arena.used_bytes

    def __contains__(self, digest: str) -> bool:
        """Without using it."""
        return digest in self._copies

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
            return HostCopy(pack(torch.empty(num_bytes, dtype=torch.uint8)), num_bytes, None)
        try:
            copy = HostCopy(pack(self._memory.bytes[start : start + num_bytes]), num_bytes, start)
        except BaseException:
            with self._lock:
                self._arena.free(start, num_bytes)
            raise
        with self._lock:
            assert digest not in self._copies, f"adapter {digest} was read twice at once"
            self._copies[digest] = copy
        return copy

    def release(self, copy: HostCopy) -> None:
        """One holder less."""
        with self._lock:
            copy.num_holders -= 1

    def close(self) -> None:
        """Unpins the memory. No copy from it may be under way."""
        self._memory.close()

    def _take(self, num_bytes: int) -> int | None:
        """A piece of the memory, at the cost of the adapters that nobody holds."""
        if not self._arena.could_fit(num_bytes):
            return None
        while (start := self._arena.allocate(num_bytes)) is None:
            oldest = next((digest for digest, copy in self._copies.items() if not copy.num_holders), None)
            if oldest is None:
                return None
            copy = self._copies.pop(oldest)
            assert copy.start is not None
            self._arena.free(copy.start, copy.num_bytes)
        return start
