"""Fills pages of the LoRA pool on threads, while steps go on.

With overlap scheduling, a step may still read the pages of an adapter that its last user has released. So an adapter is
evicted with a *fence*, the end of the newest step launched before its release: later steps don't read it. Pages are
written again only after the fences of all evicted adapters. The device waits for them, no thread does.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from punica_serve.engine.adapters.lora_pool import AdapterPages, LoraPool
from punica_serve.engine.adapters.packing import PackedAdapter
from punica_serve.protocol import LoraGroup

#: Threads: one queues its copies while the other waits for its own to end.
_NUM_COPIERS = 2


class LoraWriter:
    """Allocates and fills pages of the pool, and frees them. All methods run on the step loop's thread."""

    def __init__(self, pool: LoraPool, on_progress: Callable[[], None]) -> None:
        self._pool = pool
        self._on_progress = on_progress
        #: Fences of evicted adapters that may not have passed.
        self._fences: list[torch.cuda.Event] = []
        self._copiers = ThreadPoolExecutor(_NUM_COPIERS, "adapter-copier")

    def fill(self, needed: dict[LoraGroup, int], packed: PackedAdapter) -> tuple[AdapterPages, Future[None]]:
        """Allocates free pages and starts to fill them. ``packed`` is read until the future ends."""
        pages = self._pool.allocate(needed)
        self._fences = [fence for fence in self._fences if not fence.query()]
        work = self._copiers.submit(self._pool.write, pages, packed, tuple(self._fences))
        work.add_done_callback(lambda _: self._on_progress())
        return pages, work

    def free(self, pages: AdapterPages, fence: torch.cuda.Event | None) -> None:
        """Frees pages that no step after the fence reads."""
        self._pool.free(pages)
        if pages and fence is not None:
            self._fences.append(fence)

    def close(self) -> None:
        """Waits for copies in flight."""
        self._copiers.shutdown(cancel_futures=True)
        self._pool.synchronize()
