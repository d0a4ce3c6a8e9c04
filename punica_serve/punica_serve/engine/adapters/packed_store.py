"""Keeps adapters' packed forms on the host's disk: reads them on several threads, writes them behind everything else.

A file that is no good is dropped, and the adapter is packed from its folder again: nobody gets an error for it.
"""

import ctypes
import errno
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

import torch
from torch import Tensor

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters.chunk_reads import ChunkRead, ChunkReads, OnOpen
from punica_serve.engine.adapters.disk_watch import DiskWatch
from punica_serve.engine.adapters.load_trace import LoadPhase, LoadTrace
from punica_serve.engine.adapters.packed_chunk import PackedFileInvalid
from punica_serve.engine.adapters.packed_file import PackedLayout, packed_name, write_packed
from punica_serve.engine.adapters.packed_header import PackedName
from punica_serve.engine.adapters.packing import PackedAdapter, packed_memory, packed_num_bytes, packed_views
from punica_serve.engine.adapters.page_stream import PageStream
from punica_serve.engine.adapters.reader_count import reader_count
from punica_serve.engine.adapters.reader_process import ReaderProcess
from punica_serve.engine.adapters.reader_threads import ReaderThreads
from punica_serve.engine.memory.pinned_memory import HostMemory
from punica_serve.errors import ConfigError
from punica_serve.process.usable_cores import usable_cores
from punica_serve.protocol import AdapterRef
from punica_serve.store.adapter_files import is_digest
from punica_serve.store.cache_folder import CacheFolder
from punica_serve.store.cache_room import CacheRoom
from punica_serve.store.incoming_adapter import IncomingAdapter
from punica_serve.store.packed_folder import PackedCache

log = logging.getLogger(__name__)

#: Adapters that wait to be written. Each holds its memory meanwhile, so more are left for their next load.
_MAX_WAITING = 2
#: Removed adapters that are remembered: a load that began before lasts no longer than that many removals.
_MAX_REMEMBERED = 4096
#: Files to be marked as used at a time; others are marked at their next load.
_MAX_USED = 256
#: Errors that say nothing about the file.
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_NICE = 19
_IOPRIO_SET, _IOPRIO_WHO_THREAD, _IOPRIO_IDLE = {"x86_64": 251, "aarch64": 30}, 1, 3 << 13


class _ChunksLeft(Exception):
    """Some chunks were not begun: the disk hangs, or no thread can be had."""


class PackedStore:
    """The packed forms of one model's adapters, in a folder that all workers of the host share."""

    def __init__(
        self, cache: PackedCache, model: ModelConfig, dtype: torch.dtype, memory: HostMemory | None = None
    ) -> None:
        """``memory``: the host cache's, which a process of its own reads into; else, and elsewhere, threads read.

        Raises ConfigError for a folder of another user, or that can't be made.
        """
        try:
            self._folder = CacheFolder(cache.folder)
        except OSError as error:
            message = f"`data_folder`: adapters can't be kept in {cache.folder}: {error.strerror}; set another folder"
            raise ConfigError(message, param="data_folder") from error
        self._budget_bytes = cache.budget_bytes
        self._room = CacheRoom(self._folder, cache.budget_bytes)
        self._model = model
        self._dtype = dtype
        self._layout = PackedLayout.of(model, dtype)
        #: Threads that read chunks, of all adapters.
        num_readers = reader_count(usable_cores(), model.rank.size)
        self._watch = DiskWatch()
        self._threads = ReaderThreads(num_readers, self._watch)
        self._process = ReaderProcess(memory, num_readers, self._watch) if memory is not None else None
        self._writer = ThreadPoolExecutor(1, "packed-writer", _lower_priority)
        self._num_waiting = 0
        self._lock = threading.Lock()
        #: Digests that were removed and not loaded since, oldest first: nothing of them is written.
        self._unwanted: dict[str, None] = {}
        self._has_failed = False
        #: Digests whose files are to be marked as used.
        self._used: set[str] = set()

    def start_process(self, timeout_s: float) -> int | None:
        """Starts the process that reads before any load needs it. Its number; None where there is none in time."""
        return None if self._process is None else self._process.start(timeout_s)

    def want(self, digest: str) -> None:
        """A load begins, so the adapter may be written again. On the same thread as ``remove``."""
        with self._lock:
            self._unwanted.pop(digest, None)

    def has(self, ref: AdapterRef) -> bool:
        """Whether the adapter can be read from here: it is there, and the disk answers."""
        return self._watch.answers and self._is_here(ref)

    def _is_here(self, ref: AdapterRef) -> bool:
        return is_digest(ref.digest) and self._folder.packed.has(ref.digest, self._layout.name)

    def checksums(self, ref: AdapterRef) -> bytes | None:
        """Checksums of an adapter that this host has downloaded; None without them."""
        return self._folder.checksums(Path(ref.uri))

    def incoming(self, digest: str) -> IncomingAdapter | None:
        """An adapter that this host is downloading: see CacheFolder.incoming."""
        return self._folder.incoming(digest) if is_digest(digest) else None

    def folder(self, digest: str) -> Path:
        """Where the adapter is once it was downloaded."""
        return self._folder.path(digest)

    def begin(self, ref: AdapterRef, memory: Tensor) -> ChunkReads | None:
        """Has the process begin what ``read`` then goes on with; None if it can't at once. Never waits."""
        if self._process is None or not self._watch.answers or not is_digest(ref.digest):
            return None
        return self._process.begin_at_once(*self._file(ref), memory)

    def read(
        self,
        ref: AdapterRef,
        memory: Tensor,
        trace: LoadTrace,
        stream: PageStream | None = None,
        reads: ChunkReads | None = None,
    ) -> PackedAdapter | None:
        """Reads the adapter into uint8 [packed_num_bytes], and goes on to the device with each chunk if there is a
        ``stream``. None if its file is not there, or no good, or waits behind others on a disk that hangs.

        ``reads``: what ``begin`` has begun, into the same memory. Nothing is written to it once this has ended.
        """
        try:
            packed = self._read(ref, memory, trace, stream, reads)
        except (_ChunksLeft, FileNotFoundError):
            return None
        except (PackedFileInvalid, OSError) as error:
            if isinstance(error, OSError) and error.errno in _SHORTAGES:
                log.warning("adapter %s is packed again, and its packed form kept: %s", ref.digest, error)
                return None
            log.warning("the packed form of adapter %s is dropped and made again: %s", ref.digest, error)
            with suppress(OSError):
                self._folder.packed.drop(ref.digest, self._layout.name)
            return None
        self._mark_used(ref.digest)
        return packed

    def save(self, ref: AdapterRef, packed: PackedAdapter, on_end: Callable[[], None]) -> None:
        """Writes the adapter in the background, and calls ``on_end`` on some thread; until then ``packed`` is read.

        A hint: it may be skipped, and a disk that is full or gone costs nothing but the next load's time.
        """
        with self._lock:
            is_refused = self._num_waiting >= _MAX_WAITING or not is_digest(ref.digest)
            self._num_waiting += not is_refused
        if is_refused:
            on_end()
            return
        work = self._writer.submit(self.write, ref, packed)
        work.add_done_callback(lambda work: self._end_write(work, on_end))

    def remove(self, digest: str) -> None:
        """Removes the adapter's files in the background, also one that is being written."""
        if not is_digest(digest):
            return
        with self._lock:
            self._unwanted[digest] = None
            if len(self._unwanted) > _MAX_REMEMBERED:
                del self._unwanted[next(iter(self._unwanted))]
        with suppress(RuntimeError):  # closed
            self._writer.submit(self._folder.packed.remove, digest)

    def close(self) -> None:
        """Starts nothing more. Does not wait: a disk may hang."""
        if self._process is not None:
            self._process.close()
        self._threads.close()
        self._writer.shutdown(wait=False, cancel_futures=True)

    def _mark_used(self, digest: str) -> None:
        """In the background: while a busy disk writes its journal, it may take as long as many loads."""
        with self._lock:
            if digest in self._used or len(self._used) >= _MAX_USED:
                return
            self._used.add(digest)
        with suppress(RuntimeError):  # closed
            self._writer.submit(self._write_mark, digest)

    def _write_mark(self, digest: str) -> None:
        with self._lock:
            self._used.discard(digest)
        self._folder.packed.mark_used(digest, self._layout.name)

    def _file(self, ref: AdapterRef) -> tuple[Path, PackedName]:
        return self._folder.packed.path(ref.digest, self._layout.name), packed_name(ref, self._layout)

    def _read(
        self, ref: AdapterRef, memory: Tensor, trace: LoadTrace, stream: PageStream | None, reads: ChunkReads | None
    ) -> PackedAdapter:
        def views() -> PackedAdapter:
            return packed_views(memory, ref.ranks, self._model, self._dtype)

        def on_open(is_direct: bool, opened_s: float) -> None:
            trace.is_direct = is_direct
            trace.end(LoadPhase.OPENING, opened_s)

        with (
            nullcontext() if stream is None else stream.filling(memory),
            self._reading(ref, memory, reads, on_open, at_once=stream is None) as batches,
        ):
            packed = views() if stream is None else stream.prepare(views)
            for batch in batches:
                if stream is not None:
                    stream.put(batch)
                trace.end(LoadPhase.READING)
        return packed

    @contextmanager
    def _reading(
        self, ref: AdapterRef, memory: Tensor, begun: ChunkReads | None, on_open: OnOpen, *, at_once: bool
    ) -> Iterator[Iterator[Sequence[ChunkRead]]]:
        """Reads the chunks, which come in batches: by the process, and what that leaves when it ends by threads.

        ``at_once``: as for ``ChunkReads.batches``.
        """
        file = self._file(ref)
        with ExitStack() as reading:
            by_process = begun
            if begun is None and self._process is not None:
                by_process = self._process.begin(*file, memory)
            reads = reading.enter_context(by_process or self._threads.begin(*file, memory))

            def batches() -> Iterator[Sequence[ChunkRead]]:
                yield from reads.batches(on_open, at_once=at_once)
                left = reads.left
                if left and by_process is not None:  # it has ended
                    rest = reading.enter_context(self._threads.begin(*file, memory, left))
                    yield from rest.batches(on_open, at_once=at_once)
                    left = rest.left
                if left:
                    raise _ChunksLeft

            yield batches()

    def write(self, ref: AdapterRef, packed: PackedAdapter) -> None:
        """Writes the adapter's file unless it is there. Raises OSError, and ConfigError for another user's folder."""
        num_bytes = packed_num_bytes(ref.ranks, self._model, self._dtype)
        if self._is_here(ref) or num_bytes > self._budget_bytes or ref.digest in self._unwanted:
            return
        self._folder.packed.make()
        self._room.take(num_bytes)
        memory = packed_memory(packed, num_bytes).numpy().data
        self._folder.packed.write(
            ref.digest,
            self._layout.name,
            lambda descriptor: write_packed(descriptor, packed_name(ref, self._layout), memory),
            lambda: ref.digest not in self._unwanted,
        )

    def _end_write(self, work: "Future[None]", on_end: Callable[[], None]) -> None:
        with self._lock:
            self._num_waiting -= 1
        on_end()
        error = None if work.cancelled() else work.exception()
        if error is not None and not self._has_failed:
            self._has_failed = True
            log.warning("packed adapters can't be kept on the disk, so loads stay slow: %s", error)
        elif error is None:
            self._has_failed = False


def _lower_priority() -> None:
    """Gives this thread the lowest priority for processor and disk."""
    if sys.platform != "linux":
        return
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    number = _IOPRIO_SET.get(os.uname().machine)
    if number is not None:
        ctypes.CDLL(None).syscall(number, _IOPRIO_WHO_THREAD, 0, _IOPRIO_IDLE)
