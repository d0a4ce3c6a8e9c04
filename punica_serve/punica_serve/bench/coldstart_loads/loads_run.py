"""Loads adapters into host memory: from folders, from packed files in the page cache and on the disk, from a store."""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace
from rich.progress import Progress

from punica_serve.bench.coldstart import CACHE_BYTES
from punica_serve.bench.coldstart_loads.load_times import LoadClock, LoadTime, PlaceTimes
from punica_serve.bench.coldstart_loads.one_core import read_s, sha_s
from punica_serve.bench.limited_store.limited_store import LimitedStore, limited_store
from punica_serve.bench.limited_store.store_link import FILES, STORES, Store, allowed_s, is_spoken
from punica_serve.bench.page_cache import forget, sequential_rate
from punica_serve.bench.random_adapters import adapter_files, pack_to_disk, packed_file, write_folders
from punica_serve.bench.subject import Subject
from punica_serve.engine.adapters.host_cache import HostCache, HostCopy
from punica_serve.engine.adapters.load_trace import LoadTrace
from punica_serve.engine.adapters.packed_file import PackedLayout, packed_name
from punica_serve.engine.adapters.packed_store import PackedStore
from punica_serve.engine.adapters.packing import packed_num_bytes
from punica_serve.engine.adapters.reader import AdapterReader
from punica_serve.engine.memory.pinned_memory import HostMemory, open_host_memory
from punica_serve.errors import ConfigError
from punica_serve.protocol import AdapterRef
from punica_serve.store.cache_folder import CacheFolder
from punica_serve.store.packed_folder import PackedCache

_TIMEOUT_S = 60.0
#: Time allowed to a load beside its bytes' time at the rate of the disk.
_DISK_S = 0.005

Times = TypeVar("Times", bound="PlaceTimes | StoreTimes | None")

OnLoad = Callable[[], None]


@dataclass(frozen=True, slots=True)
class LoadsSettings:
    """The benchmark's options."""

    rank: int = 16
    #: Loads from each place, of which the median counts. One more goes before.
    num_loads: int = 5
    store_gb_per_s: float = 1.0
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class LoadsMeasured:
    """All places."""

    num_bytes: int
    #: Beside SHA-256 of an adapter's weights on one core.
    folder: PlaceTimes
    #: Beside the processor time of reading and checking on one core.
    packed: PlaceTimes
    #: Beside the disk's own rate; None if the cache could not be shown to be empty.
    disk: PlaceTimes | None
    #: Beside the server's own rate, by protocol; None without the extra that speaks it.
    stores: Mapping[Store, "StoreTimes | None"]


@dataclass(frozen=True, slots=True)
class StoreTimes:
    """One store, whose adapters are packed in two ways, load by load in turn."""

    #: While they come, as in a worker.
    meanwhile: PlaceTimes
    #: Once they have come.
    afterwards: PlaceTimes


def run_loads(subject: Subject, settings: LoadsSettings, progress: Progress) -> LoadsMeasured:
    """Raises AdapterRejected or StoreUnavailable if an adapter can't be loaded, ConfigError for too little memory or a
    server that does not start.
    """
    count = 1 + settings.num_loads

    def task(what: str) -> OnLoad:
        number = progress.add_task(what, total=count)
        return lambda: progress.advance(number)

    def place(what: str, measure: Callable[[OnLoad], Times]) -> Times:
        times = measure(task(what))
        counted = times.meanwhile if isinstance(times, StoreTimes) else times
        told = "not measured" if counted is None else f"{1e3 * counted.wall_s:,.0f} ms"
        progress.console.print(f"{what}: {told}")
        return times

    with adapter_files(settings.folder) as folder:
        made = task("random adapters")
        refs = write_folders(folder / FILES, subject.model, count, settings.rank, subject.device, made)
        cache = PackedCache(folder / "cache", CACHE_BYTES)
        pack_to_disk(refs, cache, subject.model, subject.dtype, task("packing"))
        with _host_memory(subject, refs[0]) as memory:
            loads = _Loads(subject, memory, cache, refs)
            rate = settings.store_gb_per_s * 1e9
            return LoadsMeasured(
                refs[0].num_bytes,
                place("folders", loads.from_folders),
                place("packed, page cache", loads.packed),
                place("packed, disk", loads.from_disk),
                {
                    store: place(f"store over {store}", partial(loads.from_store, store, folder, rate))
                    for store in STORES
                },
            )


class _Loads:
    """Loads the same adapters from one place after the other."""

    def __init__(self, subject: Subject, memory: HostMemory, cache: PackedCache, refs: Sequence[AdapterRef]) -> None:
        """``memory``: the host cache's."""
        self._subject = subject
        self._memory = memory
        self._host_cache = HostCache(memory)
        self._cache = cache
        self._refs = refs

    def from_folders(self, on_load: OnLoad) -> PlaceTimes:
        """Loads folders, as on a host that has never seen them."""
        times = []
        with self._reader() as reader:
            for ref in self._refs:
                allowed_s, clock = sha_s(ref), LoadClock()
                self._load(reader, ref)
                times.append(clock.time(allowed_s))
                on_load()
        return PlaceTimes.of(times)

    def packed(self, on_load: OnLoad) -> PlaceTimes:
        """Loads packed files from the page cache, beside the processor time of a core that reads and checks alone."""
        subject, times = self._subject, []
        layout = PackedLayout.of(subject.model, subject.dtype)
        with self._packed_reader() as (reader, process):
            for ref in self._refs:
                clock = LoadClock(process)
                self._load(reader, ref)
                loaded = clock.time()
                # Only now: before the load it would leave the file's bytes in the cores' caches.
                with packed_file(ref, self._cache, subject.model, subject.dtype) as descriptor:
                    allowed_s = read_s(descriptor, packed_name(ref, layout), self._memory.bytes.numpy().data)
                times.append(dataclasses.replace(loaded, allowed_s=allowed_s))
                on_load()
        return PlaceTimes.of(times)

    def from_disk(self, on_load: OnLoad) -> PlaceTimes | None:
        """Loads packed files from the disk, and measures its rate: each file is read both ways."""
        times = []
        with self._packed_reader() as (reader, process):
            for ref in self._refs:
                with packed_file(ref, self._cache, self._subject.model, self._subject.dtype) as descriptor:
                    if not forget(descriptor) or (rate := sequential_rate(descriptor)) is None:
                        return None
                    if not forget(descriptor):
                        return None
                    clock = LoadClock(process)
                    self._load(reader, ref)
                    times.append(clock.time(ref.num_bytes / rate + _DISK_S, rate))
                on_load()
        return PlaceTimes.of(times)

    def from_store(self, store: Store, folder: Path, bytes_per_s: float, on_load: OnLoad) -> StoreTimes | None:
        """From a server of ``folder``, by way of the host's cache folder, and the server's rate.

        A process of its own downloads, as for a worker.
        """
        if not is_spoken(store):
            return None
        cache = PackedCache(folder / f"downloads-{store}", 0)  # nothing packed is kept
        packed_store = PackedStore(cache, self._subject.model, self._subject.dtype)
        meanwhile: list[LoadTime] = []
        afterwards: list[LoadTime] = []
        with (
            limited_store(store, bytes_per_s, folder, cache.folder, CACHE_BYTES) as limited,
            self._reader(packed_store) as reader,
        ):
            for ref in self._refs:
                for times, is_followed in ((meanwhile, True), (afterwards, False)):
                    times.append(self._download(reader, limited, ref, is_followed=is_followed))
                    # So the next one's pages of the page cache were used before, too.
                    CacheFolder(cache.folder).remove(ref.digest)
                on_load()
        return StoreTimes(PlaceTimes.of(meanwhile), PlaceTimes.of(afterwards))

    def _download(
        self, reader: AdapterReader, limited: LimitedStore, ref: AdapterRef, *, is_followed: bool
    ) -> LoadTime:
        limited.measure_rate([ref])
        rate, remote, clock = limited.rates[-1], limited.remote(ref), LoadClock(limited.fetcher.process)
        fetch = limited.fetch(remote)
        come = reader.follow(remote, fetch, LoadTrace(ref.digest), lambda: None) if is_followed else fetch
        copy = come.result(_TIMEOUT_S)
        if isinstance(copy, Path):
            copy = reader.start(replace(ref, uri=str(copy))).result(_TIMEOUT_S)
        loaded = clock.time(allowed_s(ref.num_bytes, rate), rate)
        self._release(copy)
        fetch.result(_TIMEOUT_S)
        return loaded

    def _load(self, reader: AdapterReader, ref: AdapterRef) -> None:
        self._release(reader.start(ref).result(_TIMEOUT_S))

    def _release(self, copy: HostCopy) -> None:
        self._host_cache.release(copy)
        self._host_cache.evict(copy.digest)

    @contextmanager
    def _packed_reader(self) -> Iterator[tuple[AdapterReader, int | None]]:
        """A reader of packed files, and the number of the process that reads for it, as for a worker.

        None where workers have no such process. Raises ConfigError if it does not start.
        """
        store = PackedStore(self._cache, self._subject.model, self._subject.dtype, self._memory)
        with self._reader(store) as reader:
            process = store.start_process(_TIMEOUT_S)
            if process is None and self._memory.is_shared:
                raise ConfigError(f"the process that reads packed files did not start within {_TIMEOUT_S:g} s")
            yield reader, process

    @contextmanager
    def _reader(self, store: PackedStore | None = None) -> Iterator[AdapterReader]:
        subject = self._subject
        reader = AdapterReader(self._host_cache, subject.model, subject.dtype, subject.device, store)
        try:
            yield reader
        finally:
            reader.close()


@contextmanager
def _host_memory(subject: Subject, ref: AdapterRef) -> Iterator[HostMemory]:
    """Memory for two adapters, which was used before, and which a process may share where a worker's may."""
    num_bytes = 2 * packed_num_bytes(ref.ranks, subject.model, subject.dtype) + (1 << 20)
    memory = open_host_memory(num_bytes, subject.device, is_shared=sys.platform == "linux")
    memory.bytes.zero_()
    try:
        yield memory
    finally:
        memory.close()
