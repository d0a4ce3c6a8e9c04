"""The wait of a request whose adapter is not on the device, and its effect on other requests.

All places of the batch but one decode, each with its own adapter. A stream of requests arrives, one after the other,
each with an adapter that is only in host memory, only in files, packed by an earlier load or not yet, or only in a
store, whose server and downloads are processes of their own. For comparison, another stream uses adapters that are all
on the device. The two alternate in their order from round to round. The device has room for all warm adapters and a few
cold ones, which are evicted for the next.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.progress import Progress

from punica_serve.bench.coldstart_stream import ColdstartSettings, StreamTimes, run_stream
from punica_serve.bench.driver import preload
from punica_serve.bench.limited_store.limited_store import LimitedStore, limited_store
from punica_serve.bench.limited_store.store_link import FILES, allowed_s
from punica_serve.bench.page_cache import cached_share, forget, read_once
from punica_serve.bench.random_adapters import (
    adapter_files,
    fill_host_cache,
    pack_to_disk,
    packed_file,
    write_folders,
)
from punica_serve.bench.subject import Subject
from punica_serve.bench.token_bar import timed
from punica_serve.engine.adapters.host_loader import no_fetch
from punica_serve.engine.engine import Engine
from punica_serve.errors import ConfigError, RequestFailed
from punica_serve.process.memory_tuning import frozen_gc
from punica_serve.protocol import AdapterRef
from punica_serve.store.packed_folder import PackedCache

#: Arrivals of a warm-up round that is not counted.
_PILOT_ARRIVALS = 4

#: Cold adapters that the device has room for beside the warm ones.
_COLD_RESIDENT = 4

#: Room for packed forms: everything is kept.
CACHE_BYTES = 1 << 50

#: Opens the packed file of an adapter.
OpenPacked = Callable[[AdapterRef], AbstractContextManager[int]]


@dataclass(slots=True)
class CachedShares:
    """Shares of packed files in the page cache; none where the system does not tell."""

    #: As the files were found before each cold stream.
    found: list[float] = field(default_factory=list)
    #: After they were read once more, or taken out of it, just before the stream.
    at_start: list[float] = field(default_factory=list)

    def fill(self, adapters: Sequence[AdapterRef], open_packed: OpenPacked) -> None:
        """Brings the files of a stream into the page cache. Raises OSError."""
        for ref in adapters:
            with open_packed(ref) as descriptor:
                found = cached_share(descriptor)
                read_once(descriptor)
                self._note(found, cached_share(descriptor))

    def empty(self, adapters: Sequence[AdapterRef], open_packed: OpenPacked) -> None:
        """Takes the files of a stream out of the page cache. Raises ConfigError if they may still be there."""
        for ref in adapters:
            with open_packed(ref) as descriptor:
                found = cached_share(descriptor)
                if not forget(descriptor):
                    message = "the page cache can't be shown to lack packed files; name a `--folder` on a disk"
                    raise ConfigError(message, param="folder")
                self._note(found, cached_share(descriptor))

    def _note(self, found: float | None, at_start: float | None) -> None:
        if found is not None and at_start is not None:
            self.found.append(found)
            self.at_start.append(at_start)


@dataclass(frozen=True, slots=True)
class StoreTimes:
    """The store of cold adapters."""

    #: Bytes per second of its server, as measured before each stream.
    rate: float
    #: The goal for a load of one adapter.
    allowed_s: float


@dataclass(slots=True)
class ColdstartMeasured:
    """The times of both kinds of streams."""

    warm: StreamTimes = field(default_factory=StreamTimes)
    cold: StreamTimes = field(default_factory=StreamTimes)
    #: The packed files of cold streams.
    cached: CachedShares = field(default_factory=CachedShares)
    #: None if cold adapters were on this host.
    store: StoreTimes | None = None


def run(subject: Subject, settings: ColdstartSettings, progress: Progress) -> ColdstartMeasured:
    """Raises RequestFailed if a request fails, or if the warm ones end before the stream does, and ConfigError if
    packed files can't be taken out of the page cache, or the store's server does not start.
    """
    # Adapters of the requests that decode all the time, and of the warm stream.
    num_warm = settings.batch_size - 1 + settings.num_arrivals
    num_cold = _PILOT_ARRIVALS + settings.num_rounds * settings.num_arrivals
    num_host = num_warm + (num_cold if settings.source == "host" else 0)
    # Host memory also holds the adapters from files: they pass through it on their way to the device.
    config = subject.sized(
        batch_size=settings.batch_size,
        rank=settings.rank,
        num_host=num_warm + num_cold,
        num_resident=num_warm + _COLD_RESIDENT,
    ).model_copy(update={"cold_start": settings.mode})
    measured = ColdstartMeasured()
    with adapter_files(settings.folder) as folder, ExitStack() as opened:
        cache = PackedCache(folder / "cache", CACHE_BYTES)
        store = _open_store(settings, folder, cache, opened)
        fetch = no_fetch if store is None else store.fetch
        with timed(progress, "engine"), _advising(num_warm + _COLD_RESIDENT):
            engine = Engine(config, str(subject.device), fetch, cache)
        try:
            task = progress.add_task("random adapters", total=num_warm + num_cold)
            refs = fill_host_cache(engine, num_host, settings.rank, subject.dtype, lambda: progress.advance(task))
            if settings.source != "host":
                refs += write_folders(
                    folder / FILES,
                    subject.model,
                    num_cold,
                    settings.rank,
                    subject.device,
                    lambda: progress.advance(task),
                )
            if settings.has_packed_files:
                task = progress.add_task("packing", total=num_cold)
                pack_to_disk(refs[num_host:], cache, subject.model, subject.dtype, lambda: progress.advance(task))
            if settings.source != "host":
                with timed(progress, "writing back"):
                    os.sync()  # so that the disk is idle while streams run
            open_packed = partial(packed_file, cache=cache, model=subject.model, dtype=subject.dtype)
            warm, cold = refs[:num_warm], refs[num_warm:]
            if store is not None:
                cold = [store.remote(ref) for ref in cold]
            with frozen_gc():
                _run_rounds(engine, warm, cold, settings, measured, open_packed, store, progress)
            if store is not None:
                measured.store = StoreTimes(store.rate, allowed_s(cold[0].num_bytes, store.rate))
        finally:
            engine.close()
    return measured


def _open_store(
    settings: ColdstartSettings, folder: Path, cache: PackedCache, opened: ExitStack
) -> LimitedStore | None:
    """The store of cold adapters, which ends with ``opened``; None if they are on this host."""
    if settings.store is None:
        return None
    return opened.enter_context(
        limited_store(settings.store, settings.store_gb_per_s * 1e9, folder, cache.folder, CACHE_BYTES)
    )


@contextmanager
def _advising(num_resident: int) -> Iterator[None]:
    """Adds to an error of memory which options it came from."""
    try:
        yield
    except ConfigError as error:
        message = f"{error.message}; it is for {num_resident} adapters: ask for fewer `--arrivals` or a smaller"
        raise ConfigError(f"{message} `--batch-size`", param=error.param) from error


def _run_rounds(
    engine: Engine,
    warm: Sequence[AdapterRef],
    cold: Sequence[AdapterRef],
    settings: ColdstartSettings,
    measured: ColdstartMeasured,
    open_packed: OpenPacked,
    store: LimitedStore | None,
    progress: Progress,
) -> None:
    """Each round's cold stream uses new adapters; the warm one always uses the same."""
    task = progress.add_task("streams", total=2 * settings.num_rounds)
    beside, resident = warm[: settings.batch_size - 1], warm[settings.batch_size - 1 :]
    run_stream(engine, beside, cold[:_PILOT_ARRIVALS], settings, StreamTimes(), run="pilot")
    for number in range(settings.num_rounds):
        first = _PILOT_ARRIVALS + number * settings.num_arrivals
        for is_cold in (True, False) if number % 2 == 0 else (False, True):
            adapters = cold[first : first + settings.num_arrivals] if is_cold else resident
            if not is_cold:
                preload(engine, [*beside, *resident])
            elif settings.source == "packed":
                measured.cached.fill(adapters, open_packed)
            elif settings.source == "disk":
                measured.cached.empty(adapters, open_packed)
            elif store is not None:
                store.measure_rate(adapters)
            check_place(engine, adapters, is_cold=is_cold)
            times = measured.cold if is_cold else measured.warm
            run_stream(engine, beside, adapters, settings, times, run=f"{'cold' if is_cold else 'warm'}-{number}")
            progress.advance(task)


def check_place(engine: Engine, adapters: Sequence[AdapterRef], *, is_cold: bool) -> None:
    """Raises RequestFailed unless all adapters of a warm stream are on the device, or none of a cold one's."""
    digests, on_device = {ref.digest for ref in adapters}, set(engine.resident_adapters)
    if is_cold and digests & on_device:
        raise RequestFailed("an adapter of the cold stream is on the device already")
    if not is_cold and digests - on_device:
        raise RequestFailed("an adapter of the warm stream is not on the device")
