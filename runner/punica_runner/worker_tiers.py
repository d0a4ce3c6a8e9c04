"""The adapters in a worker's host memory and on its device, kept for the worker that replaces it when it dies.

A restarted worker has empty tiers. Its supervisor has it prefetch what they held, most used first and a few at a time.
That ends when its host memory is full, so that adapters which are used less don't evict those that are used more.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from punica_serve.protocol import AdapterRef

#: Adapters whose references are kept; the least recently used ones beyond it don't come back.
MAX_REMEMBERED = 4096
#: Prefetches that a worker has not answered. Those under way when it dies may be the cause, and are not tried again.
MAX_IN_FLIGHT = 8
#: A prefetch that takes longer, or has failed, which nobody tells, makes room for the next.
PREFETCH_TIMEOUT_S = 10.0


@dataclass(slots=True)
class _Adapter:
    ref: AdapterRef
    num_uses: int = 0


class WorkerTiers:
    """One device's adapters, over the lives of its workers. It is told what passes between supervisor and worker."""

    def __init__(self, *, has_host_memory: bool = True) -> None:
        """Without host memory for adapters nothing is prefetched, since a prefetch comes through it."""
        self._has_host_memory = has_host_memory
        self._adapters: OrderedDict[str, _Adapter] = OrderedDict()  # least recently used first
        self._on_host: set[str] = set()
        self._on_device: frozenset[str] = frozenset()
        #: Lost with the worker before and not prefetched yet, most used first -> whether it was on the device.
        self._lost: OrderedDict[str, bool] = OrderedDict()
        #: Prefetches under way -> when they time out.
        self._in_flight: dict[str, float] = {}

    @property
    def has_lost(self) -> bool:
        """Whether there is more to prefetch."""
        return bool(self._lost)

    # -------------------------------------------------------------- what passes by

    def named(self, ref: AdapterRef) -> None:
        """The worker was told of an adapter."""
        self._adapters.setdefault(ref.digest, _Adapter(ref))
        if len(self._adapters) > MAX_REMEMBERED:
            self._adapters.popitem(last=False)

    def used(self, ref: AdapterRef) -> None:
        """A request for the adapter was started."""
        self.named(ref)
        self._adapters[ref.digest].num_uses += 1
        self._adapters.move_to_end(ref.digest)

    def cached(self, came: Iterable[str], left: Iterable[str]) -> None:
        """Adapters entered or left host memory."""
        for digest in came:
            self._on_host.add(digest)
            self._lost.pop(digest, None)
            self._in_flight.pop(digest, None)
        for digest in left:
            self._on_host.discard(digest)
            if digest in self._adapters:  # it was evicted for others, not forgotten
                self._lost.clear()

    def resident(self, digests: Iterable[str]) -> None:
        """These adapters are on the device now, and no others."""
        self._on_device = frozenset(digests)

    def forget(self, digest: str) -> None:
        """The adapter was deleted: it does not come back."""
        self._adapters.pop(digest, None)
        self._lost.pop(digest, None)
        self._in_flight.pop(digest, None)

    # -------------------------------------------------------------- a new worker

    def restart(self) -> None:
        """Another worker is ready, with empty tiers."""
        held = self._on_host | self._on_device | self._lost.keys()
        on_device = self._on_device | {digest for digest, was_on_device in self._lost.items() if was_on_device}
        newest_first = [digest for digest in reversed(self._adapters) if digest in held]
        by_use = sorted(newest_first, key=lambda digest: -self._adapters[digest].num_uses)
        self._lost = OrderedDict((digest, digest in on_device) for digest in by_use if self._has_host_memory)
        self._on_host, self._on_device = set(), frozenset()
        self._in_flight.clear()

    def next_prefetches(self, now_s: float) -> list[tuple[AdapterRef, bool]]:
        """Adapters to prefetch now, and whether each goes on to the device."""
        self._in_flight = {digest: end_s for digest, end_s in self._in_flight.items() if end_s > now_s}
        prefetches = []
        while self._lost and len(self._in_flight) < MAX_IN_FLIGHT:
            digest, for_device = self._lost.popitem(last=False)
            if digest in self._adapters:
                self._in_flight[digest] = now_s + PREFETCH_TIMEOUT_S
                prefetches.append((self._adapters[digest].ref, for_device))
        return prefetches
