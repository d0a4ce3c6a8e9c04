"""The adapters in a worker's host memory and on its device, kept for the worker that replaces it when it dies.

A restarted worker has empty tiers. Its supervisor has it prefetch what they held, most used first and a few at a time.
It stops when the host memory is full, so that less used adapters don't evict more used ones. An adapter that arrived
just before the worker died may have killed it; it is loaded again only by a request.
"""

import logging
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from punica_serve.protocol import AdapterRef

log = logging.getLogger(__name__)

#: Adapters whose references are kept; the least recently used ones beyond it don't come back.
MAX_REMEMBERED = 4096
#: Prefetches that a worker has not answered. Those under way when it dies may be the cause, and are not tried again.
MAX_IN_FLIGHT = 8
#: A prefetch that takes longer, or has failed, which nobody tells, makes room for the next.
PREFETCH_TIMEOUT_S = 10.0
#: A worker that lives for so long after an adapter has come back did not die of it.
SETTLE_S = 2.0


@dataclass(slots=True)
class _Adapter:
    ref: AdapterRef
    num_uses: int = 0


@dataclass(slots=True)
class _Prefetch:
    """A prefetch under way."""

    ends_s: float
    for_device: bool


class WorkerTiers:
    """One device's adapters, over the lives of its workers. It is told what passes between supervisor and worker."""

    def __init__(self, *, has_host_memory: bool = True) -> None:
        """Prefetches nothing without host memory for adapters, since a prefetch comes through it."""
        self._has_host_memory = has_host_memory
        self._adapters: OrderedDict[str, _Adapter] = OrderedDict()  # least recently used first
        self._on_host: set[str] = set()
        self._on_device: frozenset[str] = frozenset()
        #: Lost with the worker before and not prefetched yet, most used first -> whether it was on the device.
        self._lost: OrderedDict[str, bool] = OrderedDict()
        self._in_flight: dict[str, _Prefetch] = {}
        #: Adapters that have come back without a request -> when their worker has survived them.
        self._settling: dict[str, float] = {}

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
        self._settling.pop(ref.digest, None)

    def cached(self, came: Iterable[str], left: Iterable[str], now_s: float) -> None:
        """Adapters entered or left host memory."""
        for digest in came:
            self._on_host.add(digest)
            self._lost.pop(digest, None)
            if (prefetch := self._in_flight.pop(digest, None)) is not None:
                self._settling[digest] = now_s + (PREFETCH_TIMEOUT_S if prefetch.for_device else SETTLE_S)
        for digest in left:
            self._on_host.discard(digest)
            if digest in self._adapters:  # it was evicted for others, not forgotten
                self._lost.clear()

    def resident(self, digests: Iterable[str], now_s: float) -> None:
        """Records the adapters that are on the device now."""
        before, self._on_device = self._on_device, frozenset(digests)
        for digest in self._settling.keys() & (self._on_device - before):
            self._settling[digest] = now_s + SETTLE_S

    def forget(self, digest: str) -> None:
        """The adapter was deleted: it does not come back."""
        self._adapters.pop(digest, None)
        self._lost.pop(digest, None)
        self._in_flight.pop(digest, None)
        self._settling.pop(digest, None)

    # -------------------------------------------------------------- a new worker

    def died(self, now_s: float) -> None:
        """The worker has died. Adapters that were coming back, or had just done so, don't until a request uses them."""
        suspects = {*self._in_flight, *(digest for digest, settled_s in self._settling.items() if now_s < settled_s)}
        self._on_host -= suspects
        self._on_device -= suspects
        self._in_flight.clear()
        self._settling.clear()
        if suspects:
            log.warning(
                "the worker died while it got back these adapters, which wait for a request now: %s",
                ", ".join(sorted(suspects)[:MAX_IN_FLIGHT]) + (", ..." if len(suspects) > MAX_IN_FLIGHT else ""),
            )

    def restart(self) -> None:
        """Another worker is ready, with empty tiers."""
        held = self._on_host | self._on_device | self._lost.keys()
        on_device = self._on_device | {digest for digest, was_on_device in self._lost.items() if was_on_device}
        newest_first = [digest for digest in reversed(self._adapters) if digest in held]
        by_use = sorted(newest_first, key=lambda digest: -self._adapters[digest].num_uses)
        self._lost = OrderedDict((digest, digest in on_device) for digest in by_use if self._has_host_memory)
        self._on_host, self._on_device = set(), frozenset()
        self._in_flight.clear()
        self._settling.clear()

    def next_prefetches(self, now_s: float) -> list[tuple[AdapterRef, bool]]:
        """Adapters to prefetch now, and whether each goes on to the device."""
        self._in_flight = {digest: own for digest, own in self._in_flight.items() if own.ends_s > now_s}
        prefetches = []
        while self._lost and len(self._in_flight) < MAX_IN_FLIGHT:
            digest, for_device = self._lost.popitem(last=False)
            if digest in self._adapters:
                self._in_flight[digest] = _Prefetch(now_s + PREFETCH_TIMEOUT_S, for_device)
                prefetches.append((self._adapters[digest].ref, for_device))
        return prefetches
