"""Loads adapters into host memory: from folders, from packed files in the page cache and on the disk, from a store."""

import asyncio
import hashlib
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace
from rich.progress import Progress

from punica_serve.adapters.folder import WEIGHTS_NAME
from punica_serve.bench.coldstart import CACHE_BYTES
from punica_serve.bench.coldstart_loads.disk_reads import forget, sequential_rate
from punica_serve.bench.coldstart_loads.store_link import measured_rate, store_server
from punica_serve.bench.random_adapters import adapter_files, pack_to_disk, write_folders
from punica_serve.bench.subject import Subject
from punica_serve.engine.adapters.host_cache import HostCache
from punica_serve.engine.adapters.packed_file import PackedLayout
from punica_serve.engine.adapters.packed_store import PackedStore
from punica_serve.engine.adapters.packing import packed_num_bytes
from punica_serve.engine.adapters.reader import AdapterReader
from punica_serve.engine.memory.pinned_memory import open_host_memory
from punica_serve.protocol import AdapterRef
from punica_serve.store.cache_folder import CacheFolder
from punica_serve.store.disk_cache import DiskCache
from punica_serve.store.packed_folder import PackedCache

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class LoadsSettings:
    """The benchmark's options."""

    rank: int = 16
    #: Loads from each place, of which the median counts. One more goes before.
    num_loads: int = 5
    store_gb_per_s: float = 1.0
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class LoadCost:
    """Medians of one place's loads, in seconds."""

    wall_s: float
    #: Time of this process's threads.
    processor_s: float


@dataclass(frozen=True, slots=True)
class LoadsMeasured:
    """All places."""

    num_bytes: int
    #: SHA-256 of an adapter's weights on one core.
    sha_s: float
    folder: LoadCost
    packed: LoadCost
    #: With the disk's own rate in bytes per second; None if the cache could not be shown to be empty.
    disk: tuple[LoadCost, float] | None
    #: With the server's own rate in bytes per second.
    store: tuple[LoadCost, float]


def run_loads(subject: Subject, settings: LoadsSettings, progress: Progress) -> LoadsMeasured:
    """Raises AdapterRejected or StoreUnavailable if an adapter can't be loaded, ConfigError for too little memory."""
    task = progress.add_task("places", total=4)
    with adapter_files(settings.folder) as folder:
        count = 1 + settings.num_loads
        refs = write_folders(folder / "files", subject.model, count, settings.rank, subject.device, lambda: None)
        cache = PackedCache(folder / "cache", CACHE_BYTES)
        pack_to_disk(refs, cache, subject.model, subject.dtype, lambda: None)
        with _host_cache(subject, refs[0]) as host_cache:
            loads = _Loads(subject, host_cache, cache)
            sha_s = statistics.median(_sha_s(ref) for ref in refs)
            from_folder = loads.from_folders(refs)
            progress.advance(task)
            packed = loads.packed(refs)
            progress.advance(task)
            disk = loads.from_disk(refs)
            progress.advance(task)
            store = loads.from_store(refs, folder, settings.store_gb_per_s * 1e9)
            progress.advance(task)
    return LoadsMeasured(refs[0].num_bytes, sha_s, from_folder, packed, disk, store)


class _Loads:
    """Loads the same adapters from one place after the other. The first load of each place is not counted."""

    def __init__(self, subject: Subject, host_cache: HostCache, cache: PackedCache) -> None:
        self._subject = subject
        self._host_cache = host_cache
        self._cache = cache

    def from_folders(self, refs: Sequence[AdapterRef]) -> LoadCost:
        """As on a host that has never seen them."""
        with self._reader(None) as reader:
            return _median([self._load(reader, ref) for ref in refs])

    def packed(self, refs: Sequence[AdapterRef]) -> LoadCost:
        """From the page cache."""
        with self._reader(self._cache) as reader:
            return _median([self._load(reader, ref) for ref in refs])

    def from_disk(self, refs: Sequence[AdapterRef]) -> tuple[LoadCost, float] | None:
        """From the disk, and its rate: each file is read both ways."""
        rates: list[float] = []
        costs: list[LoadCost] = []
        with self._reader(self._cache) as reader:
            for ref in refs:
                with self._packed_file(ref) as descriptor:
                    if not forget(descriptor) or (rate := sequential_rate(descriptor)) is None:
                        return None
                    if not forget(descriptor):
                        return None
                    rates.append(rate)
                    costs.append(self._load(reader, ref))
        return _median(costs), statistics.median(rates[1:])

    def from_store(self, refs: Sequence[AdapterRef], folder: Path, bytes_per_s: float) -> tuple[LoadCost, float]:
        """From a web server, by way of the host's cache folder, and the server's rate."""
        cache = PackedCache(folder / "downloads", 0)  # nothing packed is kept
        with store_server(folder / "files", bytes_per_s) as port, self._reader(cache) as reader:
            path = f"/{Path(refs[0].uri).name}/{WEIGHTS_NAME}"
            rate = statistics.median(measured_rate(port, path, refs[0].num_bytes) for _ in range(3))
            return _median(asyncio.run(self._download(reader, refs, cache.folder, port))), rate

    async def _download(
        self, reader: AdapterReader, refs: Sequence[AdapterRef], folder: Path, port: int
    ) -> list[LoadCost]:
        disk_cache = DiskCache(folder, CACHE_BYTES)
        costs = []
        try:
            for ref in refs:
                remote = replace(ref, uri=f"http://127.0.0.1:{port}/{Path(ref.uri).name}")
                clock = _Clock()
                local = replace(ref, uri=str(await disk_cache.fetch(remote)))
                costs.append(self._load(reader, local, clock))
                disk_cache.release(ref.digest)
        finally:
            await disk_cache.close()
        return costs

    def _load(self, reader: AdapterReader, ref: AdapterRef, clock: "_Clock | None" = None) -> LoadCost:
        clock = clock or _Clock()
        copy = reader.start(ref).result(_TIMEOUT_S)
        cost = clock.cost()
        self._host_cache.release(copy)
        self._host_cache.evict(ref.digest)
        return cost

    @contextmanager
    def _reader(self, cache: PackedCache | None) -> Iterator[AdapterReader]:
        subject = self._subject
        store = None if cache is None else PackedStore(cache, subject.model, subject.dtype)
        reader = AdapterReader(self._host_cache, subject.model, subject.dtype, subject.device, store)
        try:
            yield reader
        finally:
            reader.close()

    @contextmanager
    def _packed_file(self, ref: AdapterRef) -> Iterator[int]:
        layout = PackedLayout.of(self._subject.model, self._subject.dtype).name
        descriptor = CacheFolder(self._cache.folder).packed.open(ref.digest, layout)
        assert descriptor is not None, "all adapters were packed"
        try:
            yield descriptor
        finally:
            os.close(descriptor)


class _Clock:
    """Wall and processor time since it was made."""

    def __init__(self) -> None:
        self._wall_s, self._processor_s = time.perf_counter(), time.process_time()

    def cost(self) -> LoadCost:
        return LoadCost(time.perf_counter() - self._wall_s, time.process_time() - self._processor_s)


def _median(costs: Sequence[LoadCost]) -> LoadCost:
    counted = costs[1:]
    return LoadCost(
        statistics.median(cost.wall_s for cost in counted), statistics.median(cost.processor_s for cost in counted)
    )


def _sha_s(ref: AdapterRef) -> float:
    content = (Path(ref.uri) / WEIGHTS_NAME).read_bytes()
    started_s = time.perf_counter()
    hashlib.sha256(content).digest()
    return time.perf_counter() - started_s


@contextmanager
def _host_cache(subject: Subject, ref: AdapterRef) -> Iterator[HostCache]:
    """Memory for two adapters, which was used before."""
    num_bytes = 2 * packed_num_bytes(ref.ranks, subject.model, subject.dtype) + (1 << 20)
    memory = open_host_memory(num_bytes, subject.device)
    memory.bytes.zero_()
    try:
        yield HostCache(memory)
    finally:
        memory.close()
