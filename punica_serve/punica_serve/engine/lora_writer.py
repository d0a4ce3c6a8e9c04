"""Fills pages of the LoRA pool on threads, while steps go on.

Where steps run ahead, one may still read the pages of an adapter that its last user has released. So an adapter leaves
with a *fence*, the end of the newest step that was launched when it was released: later steps don't have it. Whoever
gets pages afterwards is written once the fences of all that have left are passed, and on the device only: no thread
waits.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from punica_serve.engine.lora_pool import AdapterPages, LoraPool
from punica_serve.engine.packing import PackedAdapter
from punica_serve.protocol import LoraGroup

#: One hands its copies to the device while the other waits for its own to end.
_NUM_COPIERS = 2


class LoraWriter:
    """Hands out the pool's pages, filled, and takes them back. All methods run on the step loop's thread."""

    def __init__(self, pool: LoraPool, on_progress: Callable[[], None]) -> None:
        self._pool = pool
        self._on_progress = on_progress
        #: Of adapters that have left, as far as they may not be passed.
        self._fences: list[torch.cuda.Event] = []
        self._copiers = ThreadPoolExecutor(_NUM_COPIERS, "adapter-copier")

    def fill(self, needed: dict[LoraGroup, int], packed: PackedAdapter) -> tuple[AdapterPages, Future[None]]:
        """Takes pages, which are free, and the end of filling them. ``packed`` is read until then."""
        pages = self._pool.allocate(needed)
        self._fences = [fence for fence in self._fences if not fence.query()]
        work = self._copiers.submit(self._pool.write, pages, packed, tuple(self._fences))
        work.add_done_callback(lambda _: self._on_progress())
        return pages, work

    def free(self, pages: AdapterPages, fence: torch.cuda.Event | None) -> None:
        """Takes back pages that no step behind the fence reads."""
        self._pool.free(pages)
        if pages and fence is not None:
            self._fences.append(fence)

    def close(self) -> None:
        """Waits for copies under way."""
        self._copiers.shutdown(cancel_futures=True)
        self._pool.synchronize()
