"""LoRA weights on the device: one paged pool per group of projections, paged by rank rows.

A page holds 8 rank rows of all layers, so an adapter of rank r takes ceil(r / 8) pages in each group it touches: no
padding to a highest rank, no limit of slots. Paging by rank follows S-LoRA (section 5); Punica stacks whole adapters.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from threading import Lock, local

import torch
from torch import Tensor

from punica_serve.base_model.lora_layout import (
    LORA_PAGE_RANKS,
    USUAL_LIMITS,
    VOCABULARY_GROUPS,
    LoraLimits,
    pool_pages,
)
from punica_serve.base_model.memory_budget import pool_num_bytes
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.base_model.model_spec import ProjectionGroup
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.adapters.copy_batch import CopyBatch, PageSource
from punica_serve.engine.adapters.layer_arrival import LayerArrival, layer_groups
from punica_serve.engine.adapters.packing import PackedAdapter
from punica_serve.engine.memory.auto_sizes import lora_pages
from punica_serve.engine.memory.device_memory import reserving
from punica_serve.engine.memory.page_pool import PagePool
from punica_serve.protocol import LoraGroup

#: Page numbers of an adapter in each group it touches, in order of rank rows. Never changed in place: an adapter that
#: moves gets a new one, by which the tables of steps know that they are out of date.
AdapterPages = dict[LoraGroup, list[int]]


@dataclass(frozen=True, slots=True)
class GroupPool:
    """The pages of one group. ``a`` and ``b`` share page numbers."""

    #: [pages, layers, slices, 8, inputs that A has here]
    a: Tensor
    #: [pages, layers, 8, out_features of all slices]; the adapter's scaling is folded in.
    b: Tensor
    #: The start of each slice in the outputs, and the end of the last one.
    out_offsets: tuple[int, ...]
    pages: PagePool
    #: The columns of x that A multiplies, if the ranks of a group add up x A; None: all, and x A is whole.
    divided_columns: slice | None = None


class LoraPool:
    """The pools of all groups and their free lists. The caller records which adapter has which pages."""

    def __init__(
        self,
        model: ModelConfig,
        *,
        num_pages: int,
        dtype: torch.dtype,
        device: torch.device,
        limits: LoraLimits = USUAL_LIMITS,
    ) -> None:
        self.limits = limits
        pages = pool_pages(num_pages, limits)
        self.groups: dict[LoraGroup, GroupPool] = {
            group.name: _make_pool(model, group, pages[group.name], dtype, device)
            for group in model.spec.lora_groups
            if group.name in pages
        }
        self.device = device
        #: The first token that the embedding and the head have here.
        self.first_token = model.vocabulary.start
        self.num_layers = model.num_hidden_layers
        #: Held while one adapter's copies are queued, so that those of two don't mix.
        self._queueing = Lock()
        self._is_closed = False
        #: The threads that are bound to the device.
        self._bound = local()
        #: How often each page is copied; more than once emulates a slower link, for benchmarks.
        self.copies_per_page = 1
        #: The stream of all copies; None on a CPU.
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)
            self._stream.wait_stream(torch.cuda.current_stream(device))  # which clears the pool

    @property
    def num_pages(self) -> dict[LoraGroup, int]:
        return {group: pool.pages.num_pages for group, pool in self.groups.items()}

    def fits(self, needed: dict[LoraGroup, int]) -> bool:
        """Whether ``needed`` pages of each group are free."""
        return all(count <= self.groups[group].pages.num_free for group, count in needed.items())

    def could_fit(self, needed: dict[LoraGroup, int]) -> bool:
        """Whether an empty pool would have ``needed`` pages."""
        return all(count <= self.num_pages.get(group, 0) for group, count in needed.items())

    def allocate(self, needed: dict[LoraGroup, int]) -> AdapterPages:
        return {group: self.groups[group].pages.allocate(count) for group, count in needed.items()}

    def free(self, pages: AdapterPages) -> None:
        for group, numbers in pages.items():
            self.groups[group].pages.free(numbers)

    def write(
        self,
        pages: AdapterPages,
        adapter: PackedAdapter,
        after: Sequence[torch.cuda.Event] = (),
        arrival: LayerArrival | None = None,
    ) -> float:
        """Fills pages, first layers first, and returns when they are filled: the seconds that the copies took.

        Any thread may call it while steps run. ``after``: events that the device waits for before it writes, since
        steps before them may still read the pages. No later step does, but those that wait for ``arrival``.
        """
        if self._stream is None:
            started_s = time.perf_counter()
            self._copy(pages, adapter, arrival)
            return time.perf_counter() - started_s
        # Blocking: the thread sleeps, where it would otherwise spin on a core that the steps need.
        written = torch.cuda.Event(blocking=True, enable_timing=True)
        started = torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self._stream):
            try:
                with self._queueing:
                    for event in after:
                        self._stream.wait_event(event)
                    started.record()
                    try:
                        self._copy(pages, adapter, arrival)
                    finally:
                        written.record()  # before the copies of another adapter, whose time is not this one's
            finally:  # even after an error, the source of a queued copy must not be reused
                written.synchronize()
        return float(started.elapsed_time(written)) / 1e3

    def begin_parts(
        self, pages: AdapterPages, adapter: PackedAdapter, after: Sequence[torch.cuda.Event] = ()
    ) -> CopyBatch:
        """Prepares ``write_part``, on any thread. ``after``: as for ``write``."""
        if self._stream is not None:
            for event in after:
                self._stream.wait_event(event)
        return self._batch(pages, adapter)

    def write_part(self, batch: CopyBatch, first: int, last: int) -> torch.cuda.Event | None:
        """Copies what pages get from the addresses ``first`` to ``last``, on a GPU as the stream gets to it: its end.

        Any thread may call it, and keeps the memory until the copies end. Raises CancelledError once it is closed.
        """
        if self._stream is None:
            batch.copy_part(first, last)
            return None
        self._bind_thread(self._stream)
        with self._queueing:
            if self._is_closed:
                raise CancelledError
            batch.queue_part(first, last, self._stream)
            return self.mark_time()

    def mark_time(self) -> torch.cuda.Event | None:
        """An event with a time, when the device has done what was queued so far; None on a CPU."""
        if self._stream is None:
            return None
        mark = torch.cuda.Event(enable_timing=True)
        mark.record(self._stream)
        return mark

    def end_parts(self, arrival: LayerArrival | None) -> torch.cuda.Event | None:
        """All parts of an adapter are queued: marks its layers. The end of its copies on a GPU."""
        if self._stream is None:
            self._mark(arrival)
            return None
        written = torch.cuda.Event(blocking=True)
        with torch.cuda.stream(self._stream), self._queueing:
            self._mark(arrival)
            written.record()
        return written

    def _mark(self, arrival: LayerArrival | None) -> None:
        if arrival is not None:
            for _ in layer_groups(self.num_layers):
                arrival.mark()

    def _bind_thread(self, stream: torch.cuda.Stream) -> None:
        """Gives this thread the device's context, once, which the driver's calls need, and torch's would find."""
        if not hasattr(self._bound, "device"):
            torch.cuda.set_device(stream.device)
            torch.cuda.Event().record(stream)
            self._bound.device = stream.device

    def _copy(self, pages: AdapterPages, adapter: PackedAdapter, arrival: LayerArrival | None) -> None:
        """Copies group after group of layers, on a GPU as the stream gets to it."""
        in_layers = {group: numbers for group, numbers in pages.items() if group not in VOCABULARY_GROUPS}
        beside = {group: numbers for group, numbers in pages.items() if group in VOCABULARY_GROUPS}
        if beside:
            self._copy_layers(self._batch(beside, adapter), slice(0, 1))
        batch = self._batch(in_layers, adapter)
        for group in layer_groups(self.num_layers):
            self._copy_layers(batch, slice(group.start, group.stop))
            if arrival is not None:
                arrival.mark()

    def _copy_layers(self, batch: CopyBatch, layers: slice) -> None:
        if self._stream is None:
            batch.copy(layers)
        else:
            batch.queue(layers, self._stream)

    def close(self) -> None:
        """Queues no part any more, and waits for the copies that are queued: the host's memory may be unpinned then."""
        with self._queueing:
            self._is_closed = True
        self.synchronize()

    def synchronize(self) -> None:
        """Waits for the copies that are queued."""
        if self._stream is not None:
            queued = torch.cuda.Event(blocking=True)  # the thread sleeps
            queued.record(self._stream)
            queued.synchronize()

    def _batch(self, pages: AdapterPages, adapter: PackedAdapter) -> CopyBatch:
        return CopyBatch(self._sources(pages, adapter), self.copies_per_page)

    def _sources(self, pages: AdapterPages, adapter: PackedAdapter) -> Iterator[PageSource]:
        for group, numbers in pages.items():
            pool, packed = self.groups[group], adapter.groups[group]
            yield PageSource(pool.a, numbers, packed.a)
            yield PageSource(pool.b, numbers, packed.b)

    def check_invariants(self, held: list[AdapterPages]) -> None:
        for group, pool in self.groups.items():
            pool.pages.check_invariants([number for pages in held for number in pages.get(group, [])])


def make_lora_pool(
    config: EngineConfig,
    model: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    agree: Callable[[int], int] = lambda num_pages: num_pages,
) -> LoraPool:
    """The pool of the config. ``agree``: as for ``make_kv_cache``. Raises ConfigError if it does not fit."""
    num_pages = agree(lora_pages(config, model, dtype, device))
    num_bytes = pool_num_bytes(model, num_pages, dtype.itemsize, config.lora_limits)
    with reserving(
        f"`engine.num_lora_pages` of {num_pages}",
        num_bytes,
        device,
        fix="lower it",
        param="engine.num_lora_pages",
        count=num_pages,
    ):
        return LoraPool(model, num_pages=num_pages, dtype=dtype, device=device, limits=config.lora_limits)


def _make_pool(
    model: ModelConfig, group: ProjectionGroup, num_pages: int, dtype: torch.dtype, device: torch.device
) -> GroupPool:
    layers, rows, slices = model.spec.layers_of(group.name), LORA_PAGE_RANKS, len(group.projections)
    columns, divided = group.lora_inputs, group.divided_a is not None
    return GroupPool(
        a=torch.zeros(num_pages, layers, slices, rows, len(columns), dtype=dtype, device=device),
        b=torch.zeros(num_pages, layers, rows, group.out_features, dtype=dtype, device=device),
        out_offsets=group.out_offsets,
        pages=PagePool(num_pages),
        divided_columns=slice(columns.start, columns.stop) if divided else None,
    )
