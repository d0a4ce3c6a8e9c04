"""Packs adapters while they are downloaded to this host, so that little is left when the last byte is there.

The process that downloads need not know of it: a reader looks at the growing file now and then, and believes what it
has read once the checksums agree that are written when the digest is right. Whatever goes wrong, what was packed is
dropped, and the adapter is read from its folder like any other.
"""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, local
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from punica_serve.adapters.checksums import adapter_checksums, new_checksum
from punica_serve.adapters.file_reading import ReadBuffer
from punica_serve.adapters.folder import adapter_in
from punica_serve.adapters.safetensors_file import has_header
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters.adapter_packer import AdapterPacker
from punica_serve.engine.adapters.followed_fetch import FollowedFetch
from punica_serve.engine.adapters.growth_wait import GrowthWait
from punica_serve.engine.adapters.host_cache import HostCache, HostCopy
from punica_serve.engine.adapters.load_trace import LoadPhase, LoadTrace
from punica_serve.engine.adapters.packed_store import PackedStore
from punica_serve.engine.adapters.packing import PackedAdapter, packed_num_bytes
from punica_serve.errors import AdapterRejected
from punica_serve.protocol import AdapterRef
from punica_serve.store.incoming_adapter import IncomingAdapter

log = logging.getLogger(__name__)

#: Downloads that are packed as they come, each by a thread for as long as it takes. Others are packed afterwards.
MAX_FOLLOWED = 4
#: A download from which nothing comes for so long is left alone. Stores are given up after less.
_SILENCE_S = 30.0
#: Bytes that are read before they are packed: few, so that little is left after the last one.
_PIECE_BYTES = 4 << 20

T = TypeVar("T")


class _Dropped(Exception):
    """The packed bytes are of no use. The message says why, if nobody else does."""


class IncomingReader:
    """Threads of their own: one waits for a store, which may be slow, and adapters on this host must not."""

    def __init__(
        self,
        host_cache: HostCache,
        model: ModelConfig,
        dtype: torch.dtype,
        store: PackedStore,
        keep: Callable[[AdapterRef, HostCopy], None],
        init_thread: Callable[[], None],
    ) -> None:
        """``store`` knows what this host downloads. ``keep`` is given each new copy."""
        self._host_cache = host_cache
        self._model = model
        self._dtype = dtype
        self._store = store
        self._keep = keep
        self._buffers = local()
        self._threads = ThreadPoolExecutor(MAX_FOLLOWED, "adapter-follower", init_thread)
        self._stops: dict[str, Event] = {}

    def follow(
        self, ref: AdapterRef, fetch: "Future[Path]", trace: LoadTrace, on_begin: Callable[[], None]
    ) -> "Future[Path | HostCopy]":
        """Packs an adapter that is being fetched. The future has a copy with one reference, or ends as ``fetch`` does.

        ``on_begin`` is called on some thread if its files have begun to come.
        """
        followed = FollowedFetch(fetch)

        def begin() -> bool:
            if has_begun := followed.begin():
                on_begin()
            return has_begun

        def work() -> None:
            copy = None
            try:
                copy = self._read(ref, _FollowSignals(followed.stop, begin), trace)
            finally:
                followed.end(copy)

        with suppress(RuntimeError):  # closed
            self._submit(ref.digest, followed.stop, work)
        return followed.future

    def read(self, ref: AdapterRef, read_folder: Callable[[], HostCopy]) -> "Future[HostCopy]":
        """Packs an adapter, with one reference, that is fetched for another process.

        ``read_folder`` is called on a thread if that has ended before, or can't be followed.
        """
        folder, stop = self._store.folder(ref.digest), Event()

        def work() -> HostCopy:
            return (
                self._read(ref, _FollowSignals(stop, has_ended=folder.exists), LoadTrace(ref.digest)) or read_folder()
            )

        return self._submit(ref.digest, stop, work)

    def stop(self, digest: str) -> None:
        """Nobody wants the adapter any more."""
        if (stop := self._stops.get(digest)) is not None:
            stop.set()

    def close(self) -> None:
        """Starts nothing more, and soon ends what runs. Does not wait for it."""
        for stop in list(self._stops.values()):
            stop.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _submit(self, digest: str, stop: Event, work: Callable[[], T]) -> "Future[T]":
        """Raises RuntimeError if this is closed."""
        self._stops[digest] = stop
        future = self._threads.submit(work)
        future.add_done_callback(lambda _: self._forget(digest, stop))
        return future

    def _forget(self, digest: str, stop: Event) -> None:
        if self._stops.get(digest) is stop:
            self._stops.pop(digest, None)

    def _read(self, ref: AdapterRef, signals: "_FollowSignals", trace: LoadTrace) -> HostCopy | None:
        """None if there is nothing to follow, or it ends without right bytes."""
        try:
            incoming = self._await(ref, signals)
            if incoming is None:
                return None
            with closing(incoming):
                return self._pack(ref, _Watched(incoming, signals.stop), trace) if signals.begin() else None
        except _Dropped as reason:
            if str(reason):
                log.warning("adapter %s is read again after its download: %s", ref.digest, reason)
        except AdapterRejected:
            pass  # whoever checks the digest tells more
        except (OSError, MemoryError) as error:
            log.warning("adapter %s can't be packed while it is downloaded: %s", ref.digest, error)
        except Exception:  # nobody looks at the thread's result
            log.exception("adapter %s is read again after its download, because of a bug", ref.digest)
        return None

    def _await(self, ref: AdapterRef, signals: "_FollowSignals") -> IncomingAdapter | None:
        """The adapter's download; None if it has ended, or does not begin in time. Raises OSError."""
        wait = GrowthWait(time.monotonic(), _SILENCE_S)
        while not (signals.stop.is_set() or wait.is_over(time.monotonic()) or signals.has_ended()):
            if (incoming := self._store.incoming(ref.digest)) is not None:
                return incoming
            signals.stop.wait(wait.next_s(time.monotonic()))
        return None

    def _pack(self, ref: AdapterRef, incoming: "_Watched", trace: LoadTrace) -> HostCopy:
        """Raises _Dropped, OSError, MemoryError, and AdapterRejected for bytes that can't be right."""
        if not hasattr(self._buffers, "own"):
            self._buffers.own = ReadBuffer()
        weights = self._buffers.own.take(ref.num_bytes)
        came_s = 0.0

        def pack(memory: Tensor) -> PackedAdapter:
            nonlocal came_s
            checksum, packer, end = new_checksum(), None, 0
            while end < len(weights):
                start, end = end, end + incoming.read(weights[end : end + _PIECE_BYTES])
                checksum.update(weights[start:end].data)
                if packer is None and has_header(weights[:end]):
                    adapter = adapter_in(ref, self._model.whole, weights)
                    packer = AdapterPacker(adapter, self._model, self._dtype, memory)
                if packer is not None:
                    packer.pack(end)
            came_s = time.perf_counter()
            if packer is None:
                raise _Dropped
            packed = packer.finish()
            incoming.verify(ref.digest, checksum.digest())
            return packed

        copy = self._host_cache.make(ref.digest, packed_num_bytes(ref.ranks, self._model, self._dtype), pack)
        trace.end(LoadPhase.FETCHING, came_s)
        trace.end(LoadPhase.PACKING)
        self._keep(ref, copy)
        return copy


@dataclass(frozen=True, slots=True)
class _FollowSignals:
    """Whether a download is still to be followed."""

    stop: Event
    #: It has begun. False: it is left alone after all.
    begin: Callable[[], bool] = lambda: True
    #: It has ended before that.
    has_ended: Callable[[], bool] = lambda: False


class _Watched:
    """A download, whose next bytes are waited for."""

    def __init__(self, incoming: IncomingAdapter, stop: Event) -> None:
        self._incoming = incoming
        self._stop = stop
        self._wait = GrowthWait(time.monotonic(), _SILENCE_S)
        self._num_read = 0

    def read(self, memory: npt.NDArray[np.uint8]) -> int:
        """Reads the next bytes, one at least. Raises _Dropped and OSError."""
        while not (num_bytes := self._incoming.read(memory.data, self._num_read)):
            self._pause()
        self._num_read += num_bytes
        self._wait.grew(time.monotonic())
        return num_bytes

    def verify(self, digest: str, weights_sum: bytes) -> None:
        """Waits until the adapter's digest was found right. Raises _Dropped if it was not, or for other bytes."""
        while (checksums := self._incoming.checksums()) is None:
            self._pause()
        if checksums != adapter_checksums(digest, new_checksum(self._incoming.config()).digest(), weights_sum):
            raise _Dropped("its bytes changed on the disk")

    def _pause(self) -> None:
        if self._incoming.is_gone:
            raise _Dropped
        if self._wait.is_over(now_s := time.monotonic()):
            raise _Dropped(f"nothing has come of it for {_SILENCE_S:g} s")
        if self._stop.wait(self._wait.next_s(now_s)):
            raise _Dropped
