"""LoRA weights on the device: one paged pool per group of projections, paged by rank rows.

A page holds 8 rank rows of all layers, so an adapter of rank r takes ceil(r / 8) pages in each group it touches: no
padding to a highest rank, no limit of slots. Paging by rank follows S-LoRA (section 5); Punica stacks whole adapters.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from punica_serve.config import EngineConfig
from punica_serve.engine.device_memory import reserving
from punica_serve.engine.packing import PackedAdapter
from punica_serve.engine.page_pool import PagePool
from punica_serve.lora_layout import LORA_GROUPS, LORA_PAGE_RANKS
from punica_serve.model_config import ModelConfig
from punica_serve.protocol import LoraGroup

#: At some 50 GB/s a piece takes less than 0.1 ms.
_PIECE_BYTES = 4 << 20

#: Page numbers of an adapter in each group it touches, in order of rank rows.
AdapterPages = dict[LoraGroup, list[int]]


@dataclass(frozen=True, slots=True)
class GroupPool:
    """The pages of one group. ``a`` and ``b`` share page numbers."""

    #: [pages, layers, slices, 8, in_features]
    a: Tensor
    #: [pages, layers, 8, out_features of all slices]; the adapter's scaling is folded in.
    b: Tensor
    #: Where each slice starts in the outputs, and their sum at the end.
    out_offsets: tuple[int, ...]
    pages: PagePool


class LoraPool:
    """The pools of all groups and their books. Whose pages are whose is the caller's."""

    def __init__(self, model: ModelConfig, *, num_pages: int, dtype: torch.dtype, device: torch.device) -> None:
        self.groups: dict[LoraGroup, GroupPool] = {
            group: _make_pool(model, modules, num_pages, dtype, device) for group, modules in LORA_GROUPS.items()
        }
        self.device = device
        #: Of all copies; None on a CPU.
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)
            self._stream.wait_stream(torch.cuda.current_stream(device))  # which clears the pool

    @property
    def num_pages(self) -> dict[LoraGroup, int]:
        return {group: pool.pages.num_pages for group, pool in self.groups.items()}

    def fits(self, needed: dict[LoraGroup, int]) -> bool:
        """Whether so many pages are free now."""
        return all(count <= self.groups[group].pages.num_free for group, count in needed.items())

    def could_fit(self, needed: dict[LoraGroup, int]) -> bool:
        """Whether an empty pool would have so many."""
        return all(count <= self.groups[group].pages.num_pages for group, count in needed.items())

    def allocate(self, needed: dict[LoraGroup, int]) -> AdapterPages:
        return {group: self.groups[group].pages.allocate(count) for group, count in needed.items()}

    def free(self, pages: AdapterPages) -> None:
        for group, numbers in pages.items():
            self.groups[group].pages.free(numbers)

    def write(self, pages: AdapterPages, adapter: PackedAdapter, after: Sequence[torch.cuda.Event] = ()) -> None:
        """Fills pages, and returns when they are filled. Any thread may call it, beside running steps.

        ``after``: events that the device waits for before it writes, since what they end may still read the pages.
        Nobody else does: an adapter's pages are in no step before this has returned.
        """
        if self._stream is None:
            for target, source in self._pieces(pages, adapter):
                target.copy_(source)
            return
        # Blocking: the thread sleeps, where it would otherwise spin on a core that the steps need.
        written = torch.cuda.Event(blocking=True)
        with torch.cuda.stream(self._stream):
            for event in after:
                self._stream.wait_event(event)
            try:
                for target, source in self._pieces(pages, adapter):
                    target.copy_(source, non_blocking=True)
            finally:  # whatever went wrong, nobody may reuse the source of a copy that is queued
                written.record()
                written.synchronize()

    def synchronize(self) -> None:
        """Waits for the copies under way."""
        if self._stream is not None:
            self._stream.synchronize()

    def _pieces(self, pages: AdapterPages, adapter: PackedAdapter) -> Iterator[tuple[Tensor, Tensor]]:
        """What to copy where, in contiguous pieces: a step's own small copies wait for one of them, not for all."""
        for group, numbers in pages.items():
            pool, packed = self.groups[group], adapter.groups[group]
            for place, number in enumerate(numbers):
                for target, source in ((pool.a[number], packed.a[place]), (pool.b[number], packed.b[place])):
                    size = _PIECE_BYTES // target.itemsize
                    yield from zip(target.view(-1).split(size), source.view(-1).split(size), strict=True)

    def check_invariants(self, held: list[AdapterPages]) -> None:
        for group, pool in self.groups.items():
            pool.pages.check_invariants([number for pages in held for number in pages.get(group, [])])


def make_lora_pool(config: EngineConfig, model: ModelConfig, dtype: torch.dtype, device: torch.device) -> LoraPool:
    """The pool that the config asks for. Raises ConfigError if it does not fit."""
    page_bytes = sum(_group_elements(model, modules) for modules in LORA_GROUPS.values()) * dtype.itemsize
    with reserving(
        f"`engine.num_lora_pages` of {config.num_lora_pages}",
        config.num_lora_pages * page_bytes,
        device,
        fix="lower it",
        param="engine.num_lora_pages",
    ):
        return LoraPool(model, num_pages=config.num_lora_pages, dtype=dtype, device=device)


def _group_elements(model: ModelConfig, modules: tuple[str, ...]) -> int:
    """Of one page."""
    shapes = [model.linear_shapes[module] for module in modules]
    return model.num_hidden_layers * LORA_PAGE_RANKS * sum(out + num_in for out, num_in in shapes)


def _make_pool(
    model: ModelConfig, modules: tuple[str, ...], num_pages: int, dtype: torch.dtype, device: torch.device
) -> GroupPool:
    shapes = [model.linear_shapes[module] for module in modules]
    offsets = tuple(accumulate((out for out, _ in shapes), initial=0))
    rows, layers, in_features = LORA_PAGE_RANKS, model.num_hidden_layers, shapes[0][1]
    return GroupPool(
        a=torch.zeros(num_pages, layers, len(modules), rows, in_features, dtype=dtype, device=device),
        b=torch.zeros(num_pages, layers, rows, offsets[-1], dtype=dtype, device=device),
        out_offsets=offsets,
        pages=PagePool(num_pages),
    )
