"""First tokens on an idle engine: of adapters that are on the device, and of those that are somewhere else.

Each mode of cold starts has an engine of its own, and each stream new adapters: one request after the other.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, get_args

from rich.progress import Progress

from punica_serve.base_model.lora_layout import pages_of_rank
from punica_serve.bench.coldstart import CACHE_BYTES, check_place
from punica_serve.bench.coldstart_stream import ColdstartSettings, Source, StreamTimes, run_stream
from punica_serve.bench.driver import preload
from punica_serve.bench.random_adapters import adapter_files, fill_host_cache, pack_to_disk, write_folders
from punica_serve.bench.subject import Subject
from punica_serve.bench.token_bar import timed
from punica_serve.config.engine_section import ColdStart, EngineConfig
from punica_serve.engine.adapters.packing import packed_num_bytes
from punica_serve.engine.engine import Engine
from punica_serve.engine.memory.byte_arena import arena_num_bytes
from punica_serve.errors import ConfigError
from punica_serve.process.memory_tuning import frozen_gc
from punica_serve.protocol import AdapterRef
from punica_serve.store.packed_folder import PackedCache

T = TypeVar("T", bound=str)

#: Where cold adapters may be. Packed files were just written, so the page cache has them.
_SOURCES: tuple[Source, ...] = ("host", "packed", "files")
#: Adapters of each rank for a stream that is not counted.
_NUM_PILOTS = 2
#: Adapters that the device has room for beside the warm ones.
_COLD_RESIDENT = 2


@dataclass(frozen=True, slots=True)
class IdleSettings:
    """The benchmark's options."""

    modes: tuple[ColdStart, ...] = get_args(ColdStart)
    sources: tuple[Source, ...] = _SOURCES
    ranks: tuple[int, ...] = (16, 64)
    #: Tokens of each prompt.
    prompts: tuple[int, ...] = (20, 128)
    #: Requests of each stream.
    num_arrivals: int = 6
    #: Time from one arrival to the next, which the last has finished long before.
    gap_s: float = 0.25
    folder: Path | None = None

    def stream(self, mode: ColdStart, rank: int, num_prompt_tokens: int) -> ColdstartSettings:
        """One stream, beside which nobody decodes."""
        return ColdstartSettings(
            num_arrivals=self.num_arrivals,
            gap_s=self.gap_s,
            num_prompt_tokens=num_prompt_tokens,
            num_output_tokens=2,
            rank=rank,
            batch_size=1,
            mode=mode,
        )


@dataclass(frozen=True, slots=True)
class IdleTimes:
    """First tokens of the streams of one mode, rank and prompt."""

    mode: ColdStart
    rank: int
    num_prompt_tokens: int
    warm_s: Sequence[float]
    #: By where the adapters were.
    cold_s: Mapping[Source, Sequence[float]]


@dataclass(frozen=True, slots=True)
class _AdapterSet:
    """Adapters of one rank."""

    warm: Sequence[AdapterRef]
    pilots: Sequence[AdapterRef]
    cold: Mapping[Source, Sequence[AdapterRef]]


def parse_modes(names: str | None) -> tuple[ColdStart, ...]:
    """Names separated by commas; all by default. Raises ConfigError for an unknown one."""
    return _chosen(get_args(ColdStart), names, "mode", "modes")


def parse_sources(names: str | None) -> tuple[Source, ...]:
    """Parses places of adapters, as ``parse_modes`` does modes."""
    return _chosen(_SOURCES, names, "place", "from")


def _chosen(known: tuple[T, ...], names: str | None, what: str, param: str) -> tuple[T, ...]:
    chosen = set(known) if names is None else {name.strip() for name in names.split(",")}
    for name in sorted(chosen - set(known)):
        raise ConfigError(f"{what} {name!r} does not exist; there are {', '.join(known)}", param=param)
    return tuple(name for name in known if name in chosen)


def run_idle(subject: Subject, settings: IdleSettings, progress: Progress) -> list[IdleTimes]:
    """Raises RequestFailed if a request fails, and ConfigError if the adapters don't fit."""
    times: list[IdleTimes] = []
    with adapter_files(settings.folder) as folder:
        folders = {rank: _write(subject, settings, folder / f"r{rank}", rank, progress) for rank in settings.ranks}
        task = progress.add_task("modes", total=len(settings.modes))

        def run_mode(mode: ColdStart) -> list[IdleTimes]:
            with _engine(subject, settings, mode, folder / "cache", folders, progress) as engine:
                stocks = ((rank, _stock(engine, subject, settings, rank, folders)) for rank in settings.ranks)
                return [found for stock in stocks for found in _run_rank(engine, settings, mode, *stock)]

        for mode in settings.modes:
            times += run_mode(mode)
            subject.free_memory()  # nobody holds the engine any more
            progress.advance(task)
    return times


def _run_rank(
    engine: Engine, settings: IdleSettings, mode: ColdStart, rank: int, stock: _AdapterSet
) -> Iterator[IdleTimes]:
    for number, num_tokens in enumerate(settings.prompts):
        stream = settings.stream(mode, rank, num_tokens)
        name = f"{mode}-{rank}-{num_tokens}"

        def first_tokens(
            adapters: Sequence[AdapterRef], run: str, stream: ColdstartSettings = stream
        ) -> Sequence[float]:
            found = StreamTimes()
            run_stream(engine, (), adapters, stream, found, run=run)
            return found.first_token_s

        first_tokens(stock.pilots, f"{name}-pilot")
        preload(engine, stock.warm)
        check_place(engine, stock.warm, is_cold=False)
        warm_s = first_tokens(stock.warm, f"{name}-warm")
        cold_s: dict[Source, Sequence[float]] = {}
        for source, refs in stock.cold.items():
            adapters = refs[number * settings.num_arrivals : (number + 1) * settings.num_arrivals]
            check_place(engine, adapters, is_cold=True)
            cold_s[source] = first_tokens(adapters, f"{name}-{source}")
        yield IdleTimes(mode, rank, num_tokens, warm_s, cold_s)


def _write(
    subject: Subject, settings: IdleSettings, folder: Path, rank: int, progress: Progress
) -> dict[Source, list[AdapterRef]]:
    """Folders of one rank for the streams from files."""
    sources = [source for source in settings.sources if source != "host"]
    share = settings.num_arrivals * len(settings.prompts)
    task = progress.add_task(f"adapters of rank {rank}", total=len(sources) * share)
    refs = write_folders(
        folder, subject.model, len(sources) * share, rank, subject.device, lambda: progress.advance(task)
    )
    progress.remove_task(task)
    return {source: refs[number * share : (number + 1) * share] for number, source in enumerate(sources)}


@contextmanager
def _engine(
    subject: Subject,
    settings: IdleSettings,
    mode: ColdStart,
    cache_folder: Path,
    folders: Mapping[int, Mapping[Source, Sequence[AdapterRef]]],
    progress: Progress,
) -> Iterator[Engine]:
    """An engine whose cache has the packed forms of those adapters alone that are to be read from there."""
    cache = PackedCache(cache_folder, CACHE_BYTES)
    for own in folders.values():
        pack_to_disk(own.get("packed", ()), cache, subject.model, subject.dtype, lambda: None)
    with timed(progress, f"engine, cold_start {mode}"):
        engine = Engine(_config(subject, settings, mode), str(subject.device), packed_cache=cache)
    try:
        with frozen_gc():
            yield engine
    finally:
        engine.close()
        shutil.rmtree(cache_folder, ignore_errors=True)  # a packed form may still be written


def _stock(
    engine: Engine,
    subject: Subject,
    settings: IdleSettings,
    rank: int,
    folders: Mapping[int, Mapping[Source, Sequence[AdapterRef]]],
) -> _AdapterSet:
    """The adapters of one rank: those in host memory are made here."""
    num_warm = settings.num_arrivals
    num_cold = num_warm * len(settings.prompts) if "host" in settings.sources else 0
    refs = fill_host_cache(engine, num_warm + _NUM_PILOTS + num_cold, rank, subject.dtype, lambda: None)
    in_host: dict[Source, Sequence[AdapterRef]] = {"host": refs[num_warm + _NUM_PILOTS :]} if num_cold else {}
    return _AdapterSet(refs[:num_warm], refs[num_warm : num_warm + _NUM_PILOTS], {**in_host, **folders[rank]})


def _config(subject: Subject, settings: IdleSettings, mode: ColdStart) -> EngineConfig:
    """Room for all adapters in host memory, and for the warm ones and a few more on the device."""
    share = settings.num_arrivals * len(settings.prompts)
    count = settings.num_arrivals + _NUM_PILOTS + share * len(settings.sources)
    sizes = [
        packed_num_bytes(dict.fromkeys(subject.model.linear_shapes, rank), subject.model, subject.dtype)
        for rank in settings.ranks
    ]
    return subject.config.model_copy(
        update={
            "cold_start": mode,
            "max_batch_size": 1,
            "num_lora_pages": pages_of_rank(max(settings.ranks)) * (settings.num_arrivals + _COLD_RESIDENT),
            "host_cache_bytes": sum(arena_num_bytes(count, size) for size in sizes),
        }
    )
