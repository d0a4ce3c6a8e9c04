"""Reads adapters into host memory on threads: as they were packed before, or from their files, which are packed while
they are hashed.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import local

import torch
from msgspec.structs import replace
from torch import Tensor

from punica_serve.adapters.dummy import dummy_number
from punica_serve.adapters.file_reading import ReadBuffer
from punica_serve.adapters.folder import begin_load
from punica_serve.adapters.shared_adapter import origin_digest
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters.adapter_packer import pack_adapter
from punica_serve.engine.adapters.adapter_peers import NO_PEERS, AdapterPeers
from punica_serve.engine.adapters.chunk_reads import ChunkReads
from punica_serve.engine.adapters.host_cache import HostCache, HostCopy, HostRoom
from punica_serve.engine.adapters.incoming_reader import IncomingReader
from punica_serve.engine.adapters.load_trace import LoadPhase, LoadTrace
from punica_serve.engine.adapters.packed_store import PackedStore
from punica_serve.engine.adapters.packing import PackedAdapter, packed_num_bytes
from punica_serve.engine.adapters.page_stream import PageStream
from punica_serve.engine.adapters.random_pages import pack_dummy
from punica_serve.engine.adapters.reader_process import MAX_LOADS
from punica_serve.process.usable_cores import usable_cores
from punica_serve.protocol import AdapterRef

#: Half of the threads read and pack, the others hash what was read: so the first of many adapters is there after its
#: hashing alone, and the rest no later than if each had one thread. Two cores are left to the step loop and the copies,
#: and four readers at least keep one slow disk read from delaying the next adapter.
_MIN_READERS, _SPARED_CORES = 4, 2


class _NotPacked(Exception):
    """The adapter's packed form is no good."""


@dataclass(frozen=True, slots=True)
class _BegunRead:
    """A packed adapter that is being read into reserved memory of the host cache."""

    room: HostRoom
    reads: ChunkReads


class AdapterReader:
    """Threads that read adapters which are not in the host cache yet, one at a time each."""

    def __init__(
        self,
        host_cache: HostCache,
        model: ModelConfig,
        dtype: torch.dtype,
        device: torch.device,
        packed_store: PackedStore | None = None,
        peers: AdapterPeers = NO_PEERS,
    ) -> None:
        """Without a ``packed_store`` every load hashes and packs the adapter again. ``peers`` read along."""
        self._peers = peers
        self._host_cache = host_cache
        self._packed_store = packed_store
        self._model = model
        self._dtype = dtype
        num_hashers = max(1, min(MAX_LOADS, (usable_cores() - _SPARED_CORES) // 2))
        self.num_threads = max(_MIN_READERS, num_hashers)
        self._buffers = local()
        self._hashers = ThreadPoolExecutor(num_hashers, "adapter-hasher")
        #: Reads that have not ended. Others are not kept, nor the adapters that they have.
        self._unfinished: set[Future[HostCopy]] = set()
        init_thread = partial(_init_thread, device)
        self._threads = ThreadPoolExecutor(self.num_threads, "adapter-reader", init_thread)
        #: None without the folder that adapters are downloaded to.
        self._incoming = (
            IncomingReader(host_cache, model, dtype, packed_store, self._keep, init_thread) if packed_store else None
        )
        #: Adapters whose files have begun to come, of which peers are to be told.
        self._begun: SimpleQueue[AdapterRef] = SimpleQueue()

    def start(
        self, ref: AdapterRef, stream: PageStream | None = None, trace: LoadTrace | None = None
    ) -> Future[HostCopy]:
        """The adapter in host memory with one reference, or the error of load_adapter or pack_adapter.

        ``stream``: pages that are filled meanwhile if the adapter's packed form is here. ``trace``: of the load.
        """
        trace = trace or LoadTrace(ref.digest)
        if self._packed_store is not None:
            self._packed_store.want(ref.digest)
        self._peers.read(ref)
        begun = None
        if stream is not None:
            stream.begin()
            begun = self._begin(ref, trace)
        future = self._threads.submit(self._read, ref, trace, stream, begun)
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)
        return future

    def follow(
        self, ref: AdapterRef, fetch: "Future[Path]", trace: LoadTrace, on_begin: Callable[[], None]
    ) -> "Future[Path] | Future[Path | HostCopy]":
        """Packs an adapter while it is fetched, where that can be. The future has a copy in host memory with one
        reference, or ends as ``fetch`` does.

        ``on_begin`` is called on some thread when there is something to tell peers.
        """
        if self._incoming is None or self._packed_store is None:
            return fetch

        def begin() -> None:
            self._begun.put(ref)
            on_begin()

        self._packed_store.want(ref.digest)
        return self._incoming.follow(ref, fetch, trace, begin)

    def read_along(self, ref: AdapterRef) -> Future[HostCopy]:
        """Reads an adapter that the leader of this group fetches to this host, or has fetched: see ``start``."""
        if self._incoming is None or self._packed_store is None:
            return self.start(ref)
        local_ref = replace(ref, uri=str(self._packed_store.folder(ref.digest)))
        self._packed_store.want(ref.digest)
        return self._incoming.read(ref, lambda: self._read(local_ref, LoadTrace(ref.digest)))

    def tell_peers(self, is_wanted: Callable[[str], bool]) -> None:
        """Has peers pack along the adapters whose files have begun to come, unless they were evicted since: peers were
        told to forget these.
        """
        while not self._begun.empty():
            ref = self._begun.get_nowait()
            if is_wanted(ref.digest):
                self._peers.read(ref)

    def close(self) -> None:
        """Starts nothing more. Does not wait for reads in progress: a disk may hang."""
        if self._incoming is not None:
            self._incoming.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._hashers.shutdown(wait=False, cancel_futures=True)
        if self._packed_store is not None:
            self._packed_store.close()

    def evict(self, digest: str) -> None:
        """Removes the adapter's packed form from the disk, soon, and follows its download no longer."""
        self._peers.forget(digest)
        if self._incoming is not None:
            self._incoming.stop(digest)
        if self._packed_store is not None:
            self._packed_store.remove(digest)

    def _begin(self, ref: AdapterRef, trace: LoadTrace) -> _BegunRead | None:
        """Has an adapter's packed form read while a thread wakes that goes on with it; None if that may not be.

        Never waits. A thread must be free, so that one soon waits for its reads. ``close`` may cancel the load before
        that, which does no harm: the process, its lanes and the host cache end with the reader.
        """
        is_free = len(self._unfinished) < self.num_threads
        if not is_free or self._packed_store is None or not _has_files(ref):
            return None
        trace.end(LoadPhase.READER)
        room = self._host_cache.reserve(packed_num_bytes(ref.ranks, self._model, self._dtype))
        if room is None:
            return None
        trace.end(LoadPhase.HOST_MEMORY)
        reads = self._packed_store.begin(ref, room.memory)
        if reads is None:
            self._host_cache.give_back(room)
            return None
        return _BegunRead(room, reads)

    def _read(
        self, ref: AdapterRef, trace: LoadTrace, stream: PageStream | None = None, begun: _BegunRead | None = None
    ) -> HostCopy:
        if begun is None:
            trace.end(LoadPhase.READER)
        if (copy := self._read_packed(ref, trace, stream, begun)) is not None:
            return copy
        if stream is not None:
            stream.stop()
        if (origin := origin_digest(ref)) is not None:
            return self._host_cache.share(ref.digest, origin)
        number = dummy_number(ref)
        copy = self._read_folder(ref) if number is None else self._make_dummy(ref, number)
        trace.end(LoadPhase.PACKING)
        return copy

    def _make_dummy(self, ref: AdapterRef, number: int) -> HostCopy:
        def pack(memory: Tensor) -> PackedAdapter:
            return pack_dummy(memory, number, ref.ranks, self._model, self._dtype)

        return self._host_cache.make(ref.digest, packed_num_bytes(ref.ranks, self._model, self._dtype), pack)

    def _read_folder(self, ref: AdapterRef) -> HostCopy:
        copy = self._pack_folder(ref)
        self._keep(ref, copy)
        return copy

    def _keep(self, ref: AdapterRef, copy: HostCopy) -> None:
        """Has the packed form of a new copy written in the background."""
        if self._packed_store is not None:
            self._host_cache.hold(copy)
            self._packed_store.save(ref, copy.packed, lambda: self._host_cache.release(copy))

    def _read_packed(
        self, ref: AdapterRef, trace: LoadTrace, stream: PageStream | None, begun: _BegunRead | None
    ) -> HostCopy | None:
        """Returns the packed form; None if it is missing or damaged."""
        store = self._packed_store
        if store is None or (begun is None and not store.has(ref)):
            return None
        room, reads = (begun.room, begun.reads) if begun is not None else (None, None)

        def read(memory: Tensor) -> PackedAdapter:
            if begun is None:
                trace.end(LoadPhase.HOST_MEMORY)
            packed = store.read(ref, memory, trace, stream, reads)
            if packed is None:
                raise _NotPacked
            return packed

        try:
            copy = self._host_cache.make(ref.digest, packed_num_bytes(ref.ranks, self._model, self._dtype), read, room)
        except _NotPacked:
            return None
        trace.end(LoadPhase.ENDING)
        return copy

    def _pack_folder(self, ref: AdapterRef) -> HostCopy:
        if not hasattr(self._buffers, "own"):
            self._buffers.own = ReadBuffer()
        checksums = self._packed_store.checksums(ref) if self._packed_store else None
        unverified = begin_load(ref, self._model.whole, self._buffers.own, self._hashers, checksums)
        num_bytes = packed_num_bytes(ref.ranks, self._model, self._dtype)

        def pack(memory: Tensor) -> PackedAdapter:
            return unverified.use(lambda adapter: pack_adapter(adapter, self._model, self._dtype, memory))

        return self._host_cache.make(ref.digest, num_bytes, pack)


def _has_files(ref: AdapterRef) -> bool:
    return origin_digest(ref) is None and dummy_number(ref) is None


def _init_thread(device: torch.device) -> None:
    """Limits torch to one thread, as there are as many readers as cores with a GPU."""
    if device.type == "cuda":
        torch.set_num_threads(1)
