"""The most room that any of some GPUs has, in tokens and in LoRA pages, so that a search in vain is not repeated."""

from collections.abc import Callable, Iterator, Set

from punica_scheduler.core.capacity import fits
from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.request import RequestRecord
from punica_serve.protocol import LoraGroup

#: Begins to go over the GPUs of a group.
Walk = Callable[[], Iterator[GpuRecord]]


class RoomBound:
    """No GPU of a group has more room than this, though all may have less."""

    __slots__ = ("lora_pages", "num_tokens")

    def __init__(self) -> None:
        self.num_tokens = 0
        self.lora_pages: dict[LoraGroup, int] = {}

    def include(self, gpu: GpuRecord) -> None:
        """The GPU joined the group, or has other room than before."""
        self.num_tokens = max(self.num_tokens, gpu.room)
        for group, pages in gpu.adapters.free_pages.items():
            if pages > self.lora_pages.get(group, 0):
                self.lora_pages[group] = pages

    def covers(self, gpu: GpuRecord) -> bool:
        """Whether the GPU has no more room than this."""
        lora_pages = gpu.adapters.free_pages.items()
        return gpu.room <= self.num_tokens and all(
            pages <= self.lora_pages.get(group, 0) for group, pages in lora_pages
        )

    def search(self, walk: Walk, record: RequestRecord, users: Set[GpuRecord]) -> Iterator[GpuRecord]:
        """Those of the group that have KvCache and LoRA pages for the request, in the order of ``walk``.

        ``users`` run its adapter, and so need no LoRA pages for it. A search to the end lowers the bound.
        """
        num_tokens = record.num_tokens
        if num_tokens >= self.num_tokens:
            return
        if not fits(self.lora_pages, record.lora_pages):
            yield from (gpu for gpu in walk() if gpu in users and gpu.room > num_tokens) if users else ()
            return
        for gpu in walk():
            if gpu.room > num_tokens and gpu.adapters.fits(record):
                yield gpu
        self.num_tokens, self.lora_pages = 0, {}
        for gpu in walk():
            self.include(gpu)
