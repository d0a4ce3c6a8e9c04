"""LoRA weights on the device: one paged pool per group of projections, paged by rank rows.

A page holds 8 rank rows of all layers, so an adapter of rank r takes ceil(r / 8) pages in each group it touches: no
padding to a highest rank, no limit of slots. Paging by rank follows S-LoRA (section 5); Punica stacks whole adapters.
"""

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

    def write(self, pages: AdapterPages, adapter: PackedAdapter) -> None:
        """Fills pages. Safe beside a running step: nobody reads pages whose adapter is not ready yet."""
        for group, numbers in pages.items():
            index = torch.tensor(numbers, device=self.groups[group].a.device)
            self.groups[group].a[index] = adapter.groups[group].a.to(index.device)
            self.groups[group].b[index] = adapter.groups[group].b.to(index.device)

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
