"""Capacity of an empty GPU. A cluster has few kinds of GPUs, so asking all kinds is cheap."""

from dataclasses import dataclass, field

from punica_scheduler.core.request import LoraPages, RequestRecord
from punica_serve.paging.page_rule import PageRule
from punica_serve.protocol import GpuInfo, LoraGroup

#: A worker is this far ahead of its reports when a stop reaches it: one step runs, the next is the first without.
STEPS_AHEAD = 2


@dataclass(frozen=True, slots=True)
class Capacity:
    """One kind of GPU."""

    #: Length of the longest request that the KvCache can hold, alone; UNLIMITED where it holds a window's pages.
    num_tokens: int
    #: Pages of the LoRA pool, by group; and the same to look them up.
    lora_pages: tuple[tuple[LoraGroup, int], ...]
    lora_pool: LoraPages = field(compare=False)

    @classmethod
    def of(cls, info: GpuInfo) -> "Capacity":
        lora_pages = tuple(sorted(info.num_lora_pages.items()))
        return cls(PageRule.of(info.page_size, info.window).longest(info.num_kv_pages), lora_pages, info.num_lora_pages)

    def could_run(self, record: RequestRecord) -> bool:
        """Whether the request's next steps and its adapter fit."""
        return record.num_tokens_after(STEPS_AHEAD) <= self.num_tokens and self.could_load(record)

    def could_load(self, record: RequestRecord) -> bool:
        """Whether the request's adapter fits the LoRA pool."""
        return fits(self.lora_pool, record.lora_pages)


def fits(free: LoraPages, needed: LoraPages) -> bool:
    """Whether each group of a LoRA pool has as many pages as are needed."""
    for group, pages in needed.items():  # noqa: SIM110 (all() takes three times as long, and this is asked of each GPU)
        if pages > free.get(group, 0):
            return False
    return True
