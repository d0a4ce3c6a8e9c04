"""Fills pages of the LoRA pool on threads, while steps go on.

With overlap scheduling, a step may still read the pages of an adapter that its last user has released. So an adapter is
evicted with a *fence*, the end of the newest step launched before its release: later steps don't read it. Pages are
written again only after the fences of all evicted adapters. The device waits for them, no thread does.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from punica_serve.base_model.lora_layout import VOCABULARY_GROUPS
from punica_serve.engine.adapters.adapter_peers import AdapterPeers, GroupCopy
from punica_serve.engine.adapters.copy_forecast import CopyForecast, CopyUnderWay, StepForecast
from punica_serve.engine.adapters.layer_arrival import Arrival, ArrivalWords, CpuArrival, layer_groups, make_arrival
from punica_serve.engine.adapters.load_trace import LoadTrace
from punica_serve.engine.adapters.lora_pool import AdapterPages, LoraPool
from punica_serve.engine.adapters.packing import PackedAdapter
from punica_serve.engine.adapters.page_stream import PageStream
from punica_serve.protocol import AdapterRef, LoraGroup

#: Threads: one queues its copies while the other waits for its own to end.
_NUM_COPIERS = 2


class LoraWriter:
    """Allocates and fills pages of the pool, and frees them. All methods run on the step loop's thread."""

    def __init__(
        self,
        pool: LoraPool,
        on_progress: Callable[[], None],
        peers: AdapterPeers,
        *,
        by_layer: bool = False,
        arrival_words: ArrivalWords | None = None,
    ) -> None:
        """``peers`` fill the same pages. ``by_layer``: steps may wait for a copy layer by layer. ``arrival_words``:
        some look at it as they run.
        """
        self._pool = pool
        self._on_progress = on_progress
        self._peers = peers
        self._by_layer = by_layer
        self._arrival_words = arrival_words
        self._forecast = CopyForecast()
        #: Fences of evicted adapters that may not have passed.
        self._fences: list[torch.cuda.Event] = []
        self._copiers = ThreadPoolExecutor(_NUM_COPIERS, "adapter-copier")

    def allocate(self, needed: dict[LoraGroup, int]) -> AdapterPages:
        """Takes free pages."""
        return self._pool.allocate(needed)

    def stream(self, pages: AdapterPages, trace: LoadTrace) -> PageStream:
        """Pages to be filled while their adapter is read."""
        return PageStream(self._pool, pages, self._open_fences(), self._make_arrival(pages), self._on_progress, trace)

    def follow(self, ref: AdapterRef, stream: PageStream, num_bytes: int) -> tuple[GroupCopy, Arrival | None]:
        """The copies of a complete stream of ``num_bytes``, some of which are still to come: its chunks have parts of
        all layers.
        """
        work = self._copiers.submit(self._outlast, stream)
        copy = self._begin(
            ref, stream.pages, num_bytes, stream.fences, work, stream.arrival, bytes_to_come=stream.bytes_to_come
        )
        return copy, stream.arrival

    def fill(self, ref: AdapterRef, pages: AdapterPages, packed: PackedAdapter) -> tuple[GroupCopy, Arrival | None]:
        """Starts to fill pages, on all ranks. ``packed`` is read until that is done."""
        fences, arrival = self._open_fences(), self._make_arrival(pages)
        work = self._copiers.submit(self._write, pages, packed, fences, arrival)
        return self._begin(ref, pages, packed.num_bytes, fences, work, arrival), arrival

    def arrives_in_s(self, arrival: Arrival, step: StepForecast) -> list[float] | None:
        """See ``CopyForecast.arrives_in_s``."""
        return self._forecast.arrives_in_s(arrival, step)

    def hold_s(self, arrival: Arrival, step: StepForecast) -> float | None:
        """How long a step would wait for layers of this copy, at most; None if that is unknown."""
        return self._forecast.hold_s(arrival, step)

    def free(self, pages: AdapterPages, fence: torch.cuda.Event | None) -> None:
        """Frees pages that no step after the fence reads."""
        self._pool.free(pages)
        if pages and fence is not None:
            self._fences.append(fence)

    def close(self) -> None:
        """Waits for copies in flight."""
        self._copiers.shutdown(cancel_futures=True)
        self._pool.close()

    def _open_fences(self) -> tuple[torch.cuda.Event, ...]:
        self._fences = [fence for fence in self._fences if not fence.query()]
        return tuple(self._fences)

    def _make_arrival(self, pages: AdapterPages) -> Arrival | None:
        """None if steps wait for all of the adapter: the embedding, for one, is read before the first layer."""
        if not self._by_layer or VOCABULARY_GROUPS.keys() & pages.keys():
            return None
        return make_arrival(self._pool.num_layers, self._pool.device, self._on_progress, self._arrival_words)

    def _begin(
        self,
        ref: AdapterRef,
        pages: AdapterPages,
        num_bytes: int,
        fences: tuple[torch.cuda.Event, ...],
        work: Future[None],
        arrival: Arrival | None,
        *,
        bytes_to_come: Callable[[], int] | None = None,
    ) -> GroupCopy:
        """Follows a copy that ``work`` does or waits for. ``bytes_to_come``: as ``CopyUnderWay`` has it."""
        work.add_done_callback(lambda _: self._on_progress())
        copy = self._peers.copy(ref, pages, work, by_layer=arrival is not None)
        if arrival is not None:
            num_groups = len(layer_groups(self._pool.num_layers))
            self._forecast.add(CopyUnderWay(arrival, num_groups, num_bytes, fences, copy, bytes_to_come))
        return copy

    def _outlast(self, stream: PageStream) -> None:
        stream.wait()
        self._forecast.record_rate(*stream.fastest_copy())

    def _write(
        self,
        pages: AdapterPages,
        packed: PackedAdapter,
        fences: tuple[torch.cuda.Event, ...],
        arrival: Arrival | None,
    ) -> None:
        try:
            duration_s = self._pool.write(pages, packed, fences, arrival)
        except BaseException:
            if isinstance(arrival, CpuArrival):
                arrival.fail()
            raise
        self._forecast.record_rate(packed.num_bytes, duration_s)
