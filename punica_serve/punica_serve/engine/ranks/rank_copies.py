"""The copies of adapters to the device of a rank that follows its leader, and what its steps may wait for meanwhile.

Copies run on threads. Everything else runs on the thread that takes the leader's commands, in their order. A copy waits
on the device for the last steps that read the adapters which had its pages before, as the leader's own copies do.
"""

import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from punica_serve.base_model.lora_layout import VOCABULARY_GROUPS
from punica_serve.engine.adapters.copy_error import copy_error
from punica_serve.engine.adapters.host_cache import HostCache, HostCopy
from punica_serve.engine.adapters.layer_arrival import Arrival, ArrivalWords, CpuArrival, make_arrival
from punica_serve.engine.adapters.lora_pool import AdapterPages, LoraPool
from punica_serve.errors import StoreUnavailable
from punica_serve.errors.invariants import require
from punica_serve.protocol import LoraGroup

#: From the leader's command to the end of the read, whatever it waits for. A slower disk fails the load, and the leader
#: tries again: it takes a rank for lost only later.
_READ_TIMEOUT_S = 30.0
_NUM_COPIERS = 2


@dataclass(slots=True)
class _RankCopy:
    """A copy that the leader has commanded."""

    pages: AdapterPages
    #: Ends when steps may wait for the copy's layers, or when it has failed.
    queued: "Future[None]" = field(default_factory=Future)
    arrival: Arrival | None = None

    def mark_queued(self) -> None:
        self.queued.set_result(None)

    def fail(self, error: BaseException) -> None:
        """Lets go of whoever waits."""
        if isinstance(self.arrival, CpuArrival):
            self.arrival.fail()
        if not self.queued.done():
            self.queued.set_exception(error)


class RankCopies:
    """The adapters that the leader has given pages, until it frees them."""

    def __init__(
        self,
        pool: LoraPool,
        host_cache: HostCache,
        *,
        by_layer: bool,
        arrival_words: ArrivalWords | None = None,
    ) -> None:
        """``by_layer``: steps may wait for the layers of an adapter that is still being copied. ``arrival_words``: some
        look at them as they run.
        """
        self._pool = pool
        self._host_cache = host_cache
        self._by_layer = by_layer
        self._arrival_words = arrival_words
        self._copies: dict[str, _RankCopy] = {}
        #: Their pages.
        self._held: set[tuple[LoraGroup, int]] = set()
        #: The ends of the last steps that read adapters which were freed, and that may not have passed.
        self._fences: list[torch.cuda.Event] = []
        #: The end of the last step that has read an adapter, by digest.
        self._last_uses: dict[str, torch.cuda.Event] = {}
        self._threads = ThreadPoolExecutor(_NUM_COPIERS, "rank-copier")

    @property
    def pages_by_digest(self) -> dict[str, AdapterPages]:
        """The pages of each adapter on the device, or on its way there."""
        return {digest: copy.pages for digest, copy in self._copies.items()}

    def pages(self, digest: str) -> AdapterPages:
        return self._copies[digest].pages

    def arrival(self, digest: str) -> Arrival | None:
        """The copy that a step with this adapter must wait for, layer by layer; None if all of it has arrived."""
        return self._copies[digest].arrival

    def queued(self, digest: str) -> "Future[None]":
        """Ends when steps may wait for the layers of an adapter's copy, or with its error."""
        return self._copies[digest].queued

    def mark_used(self, digests: Iterable[str], end: torch.cuda.Event | None) -> None:
        """A step that ends then reads these adapters; None if it has ended."""
        if end is not None:
            self._last_uses.update(dict.fromkeys(digests, end))

    def start(self, digest: str, pages: AdapterPages, source: "HostCopy | Future[HostCopy]") -> "Future[None]":
        """Fills pages from a copy in host memory, with its reference; steps may read them when the future has ended."""
        given = _pages_in(pages)
        require(self._held.isdisjoint(given), f"adapter {digest} was given pages of another one")
        self._held |= given
        copy = self._copies[digest] = _RankCopy(pages)
        # As the leader decides: the embedding is read before the first layer.
        if self._by_layer and not VOCABULARY_GROUPS.keys() & pages.keys():
            pool = self._pool
            copy.arrival = make_arrival(pool.num_layers, pool.device, copy.mark_queued, self._arrival_words)
        self._fences = [fence for fence in self._fences if not fence.query()]
        return self._threads.submit(self._run, copy, source, tuple(self._fences), time.monotonic() + _READ_TIMEOUT_S)

    def free(self, digest: str) -> None:
        """Steps to come don't read the adapter's pages, which another one may get."""
        if (copy := self._copies.pop(digest, None)) is not None:
            self._held -= _pages_in(copy.pages)
        if (fence := self._last_uses.pop(digest, None)) is not None:
            self._fences.append(fence)

    def close(self) -> None:
        """Waits for copies in flight."""
        self._threads.shutdown(cancel_futures=True)
        self._pool.synchronize()

    def _run(
        self,
        copy: _RankCopy,
        source: "HostCopy | Future[HostCopy]",
        fences: tuple[torch.cuda.Event, ...],
        deadline_s: float,
    ) -> None:
        try:
            self._fill(copy, self._read(source, deadline_s), fences)
        except BaseException as error:
            copy.fail(error)
            raise
        copy.arrival = None  # all of it is there

    def _fill(self, copy: _RankCopy, held: HostCopy, fences: tuple[torch.cuda.Event, ...]) -> None:
        try:
            self._pool.write(copy.pages, held.packed, fences, copy.arrival)
        finally:
            self._host_cache.release(held)

    def _read(self, source: "HostCopy | Future[HostCopy]", deadline_s: float) -> HostCopy:
        """The copy in host memory. Raises StoreUnavailable if it is not there in time."""
        if isinstance(source, HostCopy):
            return source
        try:
            return source.result(max(0.0, deadline_s - time.monotonic()))
        except TimeoutError:
            source.add_done_callback(self._release)
            raise StoreUnavailable(f"its files were not read within {_READ_TIMEOUT_S:g} s") from None
        except FileNotFoundError:
            raise StoreUnavailable("its files have left this host's disk") from None

    def _release(self, read: "Future[HostCopy]") -> None:
        if copy_error(read) is None:
            self._host_cache.release(read.result())


def _pages_in(pages: AdapterPages) -> set[tuple[LoraGroup, int]]:
    return {(group, number) for group, numbers in pages.items() for number in numbers}
