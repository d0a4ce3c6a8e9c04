"""The adapters of a rank that follows its leader: read when the leader reads them, copied where it says.

Reads and copies run on threads. Everything else runs on the thread that takes the leader's commands, in their order, so
that a copy overwrites no page which a step sent before it reads.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from msgspec.structs import replace

from punica_serve.engine.adapters.host_cache import HostCache, HostCopy
from punica_serve.engine.adapters.lora_pool import AdapterPages, LoraPool
from punica_serve.engine.adapters.reader import AdapterReader
from punica_serve.errors import StoreUnavailable
from punica_serve.errors.invariants import require
from punica_serve.protocol import AdapterRef, LoraGroup

#: From the leader's command to the end of the read, whatever it waits for. A slower disk fails the load, and the leader
#: tries again: it takes a rank for lost only later.
_READ_TIMEOUT_S = 30.0
#: Adapters whose folders on this host are remembered.
_MAX_FOLDERS = 4096
_NUM_COPIERS = 2


class RankAdapters:
    """A LoRA pool whose pages the leader gives, and a host cache of its own."""

    def __init__(
        self,
        pool: LoraPool,
        host_cache: HostCache,
        reader: AdapterReader,
        newest_end: Callable[[], torch.cuda.Event | None],
    ) -> None:
        """``newest_end``: the end of the newest step that was launched."""
        self._pool = pool
        self._host_cache = host_cache
        self._reader = reader
        self._newest_end = newest_end
        #: The pages of each adapter on the device, or on its way there.
        self.pages_by_digest: dict[str, AdapterPages] = {}
        #: Reads that nobody waits for yet; each has a reference to a copy when it has ended.
        self._reads: dict[str, Future[HostCopy]] = {}
        #: Where an adapter's files were on this host when the leader last read them.
        self._folders: OrderedDict[str, str] = OrderedDict()
        self._copiers = ThreadPoolExecutor(_NUM_COPIERS, "rank-copier")

    def pages(self, digest: str) -> AdapterPages:
        return self.pages_by_digest[digest]

    def read(self, ref: AdapterRef) -> None:
        """Reads an adapter ahead of its copy. An error shows when it is copied."""
        self._release_reads()
        self._folders[ref.digest] = ref.uri
        self._folders.move_to_end(ref.digest)
        if len(self._folders) > _MAX_FOLDERS:
            self._folders.popitem(last=False)
        if ref.digest not in self._host_cache and ref.digest not in self._reads:
            self._reads[ref.digest] = self._reader.start(ref)

    def copy(self, ref: AdapterRef, pages: AdapterPages) -> "Future[None]":
        """Fills pages after all steps that were launched; steps may read them when the future has ended."""
        digest, deadline_s = ref.digest, time.monotonic() + _READ_TIMEOUT_S
        held = {page for own in self.pages_by_digest.values() for page in _pages_in(own)}
        require(held.isdisjoint(_pages_in(pages)), f"adapter {digest} was given pages of another one")
        self.pages_by_digest[digest] = pages
        fence = self._newest_end()
        copy = self._reads.pop(digest, None) or self._host_cache.get(digest)
        source = copy or self._reader.start(replace(ref, uri=self._folders.get(digest, ref.uri)))
        return self._copiers.submit(self._fill, pages, source, () if fence is None else (fence,), deadline_s)

    def free(self, digest: str) -> None:
        self._release_reads()
        self.pages_by_digest.pop(digest, None)

    def forget(self, digest: str) -> None:
        self._release_reads()
        self._folders.pop(digest, None)
        self._host_cache.evict(digest)
        self._reader.evict(digest)

    def close(self) -> None:
        """Starts nothing more, and waits for copies in flight."""
        self._reader.close()
        self._copiers.shutdown(cancel_futures=True)
        self._pool.synchronize()
        self._host_cache.close()

    def _fill(
        self,
        pages: AdapterPages,
        source: "HostCopy | Future[HostCopy]",
        fences: tuple[torch.cuda.Event, ...],
        deadline_s: float,
    ) -> None:
        try:
            left_s = max(0.0, deadline_s - time.monotonic())
            copy = source.result(left_s) if isinstance(source, Future) else source
        except TimeoutError:
            assert isinstance(source, Future)
            source.add_done_callback(self._release)
            raise StoreUnavailable(f"its files were not read within {_READ_TIMEOUT_S:g} s") from None
        except FileNotFoundError:
            raise StoreUnavailable("its files have left this host's disk") from None
        try:
            self._pool.write(pages, copy.packed, fences)
        finally:
            self._host_cache.release(copy)

    def _release(self, read: "Future[HostCopy]") -> None:
        if read.exception() is None:
            self._host_cache.release(read.result())

    def _release_reads(self) -> None:
        """Lets the host cache evict what was read and not used yet."""
        for digest, read in [(digest, read) for digest, read in self._reads.items() if read.done()]:
            del self._reads[digest]
            self._release(read)


def _pages_in(pages: AdapterPages) -> Iterator[tuple[LoraGroup, int]]:
    for group, numbers in pages.items():
        yield from ((group, number) for number in numbers)
