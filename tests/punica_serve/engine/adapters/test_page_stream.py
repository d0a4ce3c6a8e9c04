"""Adapters that go on to the device while they are read: nothing uses them before all of their bytes were verified."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace as replaced
from pathlib import Path
from threading import Event, Lock
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from cold_requests import NUM_LAYERS, cold_adapters, cold_request, run_requests
from loader_harness import LoaderHarness, gate_reads
from punica_serve.adapters.folder import load_adapter, read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.engine_section import ColdStart, EngineConfig
from punica_serve.engine.adapters import chunk_reads, host_load, packed_file, packed_store, page_stream
from punica_serve.engine.adapters.copy_batch import CopyBatch
from punica_serve.engine.adapters.entry import AdapterState
from punica_serve.engine.adapters.loader import AdapterLoader
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.engine.adapters.packed_chunk import Chunk, check_chunk, read_chunk
from punica_serve.engine.adapters.packed_store import PackedStore
from punica_serve.engine.adapters.packing import PackedAdapter, pack_adapter, packed_num_bytes, packed_views
from punica_serve.engine.adapters.page_stream import PageStream
from punica_serve.engine.adapters.range_reader import RangeReader
from punica_serve.engine.adapters.step_arrivals import StepArrivals
from punica_serve.engine.engine import Engine
from punica_serve.protocol import AdapterRef
from punica_serve.store.packed_folder import PackedCache
from waits import DEADLINE_S

_NUM_PAGES = 4
_SETTINGS: dict[str, Any] = {"dtype": "float32", "page_size": 4, "num_kv_pages": 256, "num_lora_pages": 64}

Make = Callable[..., LoaderHarness]


@pytest.fixture
def model(tiny_model: ModelConfig) -> ModelConfig:
    """Its adapters have several chunks."""
    return replaced(tiny_model, num_hidden_layers=7)


@pytest.fixture
def cache(tmp_path: Path) -> PackedCache:
    return PackedCache(tmp_path / "cache", 1 << 30)


@pytest.fixture
def refs(model: ModelConfig, tmp_path: Path) -> list[AdapterRef]:
    folders = [write_random_adapter(tmp_path / str(seed), model, rank=12, seed=seed, lora_alpha=7) for seed in range(3)]
    return [read_adapter(folder, model) for folder in folders]


@pytest.fixture
def packed(model: ModelConfig, cache: PackedCache, refs: list[AdapterRef]) -> list[PackedAdapter]:
    """All adapters, whose packed files are on the disk."""
    store, made = PackedStore(cache, model, torch.float32), []
    for ref in refs:
        memory = torch.empty(packed_num_bytes(ref.ranks, model, torch.float32), dtype=torch.uint8)
        made.append(pack_adapter(load_adapter(ref, model), model, torch.float32, memory))
        store.write(ref, made[-1])
    store.close()
    return made


@pytest.fixture
def make(model: ModelConfig, cache: PackedCache) -> Iterator[Make]:
    made: list[LoaderHarness] = []

    def make(num_pages: int = _NUM_PAGES, device: str = "cpu") -> LoaderHarness:
        store = PackedStore(cache, model, torch.float32)
        made.append(LoaderHarness(model, num_pages, device=torch.device(device), packed_store=store))
        return made[-1]

    yield make
    for harness in made:
        harness.loader.close()
        harness.host_cache.close()


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that have copied whole adapters from host memory."""
    seen: list[str] = []
    write = LoraPool.write

    def spy(pool: LoraPool, *rest: object) -> float:
        seen.append("copy")
        return write(pool, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(LoraPool, "write", spy)
    return seen


class Gate:
    """Holds the reads of an adapter's last chunk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.others_done, self._opened = Event(), Event(), Event()
        copy, bytes_left = LoraPool.write_part, 0
        last = 0

        def open_chunks(*arguments: Any) -> list[Chunk]:
            nonlocal last, bytes_left
            chunks = packed_file.open_chunks(*arguments)
            last = bytes_left = chunks[-1].start
            return chunks

        def read(file: RangeReader, chunk: Chunk) -> None:
            if chunk.start == last:
                self.begun.set()
                assert self._opened.wait(DEADLINE_S)
            read_chunk(file, chunk)

        def write(pool: LoraPool, batch: Any, first: int, last: int) -> None:
            nonlocal bytes_left
            copy(pool, batch, first, last)
            bytes_left -= last - first
            if bytes_left == 0:
                self.others_done.set()

        monkeypatch.setattr(packed_store, "open_chunks", open_chunks)
        monkeypatch.setattr(chunk_reads, "read_chunk", read)
        monkeypatch.setattr(LoraPool, "write_part", write)

    def open(self) -> None:
        self._opened.set()


def state(harness: LoaderHarness, ref: AdapterRef) -> AdapterState:
    return harness.loader.adapters[ref.digest].state


def check_pages(harness: LoaderHarness, ref: AdapterRef, packed: PackedAdapter) -> None:
    for group, numbers in harness.loader.adapters.pages(ref.digest).items():
        assert torch.equal(harness.pool.groups[group].a[numbers].cpu(), packed.groups[group].a)
        assert torch.equal(harness.pool.groups[group].b[numbers].cpu(), packed.groups[group].b)


def copied(memory: Tensor, packed: PackedAdapter, ref: AdapterRef, harness: LoaderHarness) -> PackedAdapter:
    """The same adapter in other memory."""
    views = packed_views(memory, ref.ranks, harness.loader._model, torch.float32)
    for group, pages in views.groups.items():
        pages.a.copy_(packed.groups[group].a)
        pages.b.copy_(packed.groups[group].b)
    return views


def settle(loader: AdapterLoader) -> None:
    """Waits for what is written and removed in the background."""
    store = loader._host._reader._packed_store
    assert store is not None
    store._writer.submit(lambda: None).result(DEADLINE_S)


def file_of(cache: PackedCache, ref: AdapterRef) -> Path:
    (file,) = (cache.folder / "packed" / ref.digest).iterdir()
    return file


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_what_is_read_from_a_packed_file_is_on_the_device_by_then(
    make: Make, refs: list[AdapterRef], packed: list[PackedAdapter], copies: list[str], device: str
) -> None:
    harness = make(num_pages=2 * len(refs), device=device)
    harness.load(*refs)
    for ref, adapter in zip(refs, packed, strict=True):
        check_pages(harness, ref, adapter)
        assert ref.digest in harness.host_cache
    assert not copies and set(harness.loader.adapters.resident) == {ref.digest for ref in refs}


def test_a_chunk_is_copied_while_others_are_read_and_nothing_is_ready_before_the_last(
    make: Make, refs: list[AdapterRef], packed: list[PackedAdapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, ref, gate = make(), refs[0], Gate(monkeypatch)
    harness.loader.acquire(ref)
    assert gate.begun.wait(DEADLINE_S)
    name, numbers = next(iter(harness.loader.adapters.pages(ref.digest).items()))
    assert gate.others_done.wait(DEADLINE_S)
    assert torch.equal(harness.pool.groups[name].a[numbers], packed[0].groups[name].a), "all that lies in other chunks"
    harness.loader.poll()
    assert state(harness, ref) is AdapterState.STREAMING and harness.loader.adapters.is_copying
    assert not harness.loader.adapters.is_ready(ref.digest) and not harness.loader.arrivals.can_join(ref.digest)
    assert harness.loader.arrivals.under_way(ref.digest) is None
    gate.open()
    harness.until(lambda: harness.loader.adapters.is_ready(ref.digest))
    check_pages(harness, ref, packed[0])


def test_chunks_that_come_while_others_are_copied_are_one_copy(
    make: Make, refs: list[AdapterRef], packed: list[PackedAdapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call gives the GIL up, and has to get it back from the step loop."""
    stretches: list[int] = []
    prepare, copy, all_read = LoraPool.begin_parts, LoraPool.write_part, Event()
    num_bytes = packed[0].num_bytes
    bytes_left, lock = num_bytes, Lock()

    def check(chunk: Chunk) -> None:
        nonlocal bytes_left
        check_chunk(chunk)
        with lock:
            bytes_left -= len(chunk.memory)
            if bytes_left == 0:
                all_read.set()

    def prepare_late(*arguments: Any) -> CopyBatch:
        assert all_read.wait(DEADLINE_S)
        time.sleep(0.02)  # the thread that has read the last one says so
        return prepare(*arguments)

    def write(pool: LoraPool, batch: CopyBatch, first: int, last: int) -> None:
        stretches.append(last - first)
        copy(pool, batch, first, last)

    monkeypatch.setattr(chunk_reads, "check_chunk", check)
    monkeypatch.setattr(LoraPool, "begin_parts", prepare_late)
    monkeypatch.setattr(LoraPool, "write_part", write)
    harness = make()
    harness.load(refs[0])
    check_pages(harness, refs[0], packed[0])
    assert stretches == [num_bytes]


@pytest.mark.parametrize("place", [0, 60, 4096, -5000, -1])
def test_a_damaged_chunk_is_never_used_and_the_adapter_is_made_again(
    make: Make, cache: PackedCache, refs: list[AdapterRef], packed: list[PackedAdapter], copies: list[str], place: int
) -> None:
    ref, file = refs[0], file_of(cache, refs[0])
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    harness = make()
    harness.load(ref)
    check_pages(harness, ref, packed[0])
    assert copies == ["copy"], "from the folder"
    pages = harness.loader.adapters.pages(ref.digest)
    assert sum(len(numbers) for numbers in pages.values()) == 8, "to the pages that it had"


@pytest.mark.parametrize("num_bytes", [0, 100, 4096, 20_000])
def test_a_file_that_is_cut_short_is_made_again(
    make: Make,
    cache: PackedCache,
    refs: list[AdapterRef],
    packed: list[PackedAdapter],
    copies: list[str],
    num_bytes: int,
) -> None:
    os.truncate(file_of(cache, refs[0]), num_bytes)
    harness = make()
    harness.load(refs[0])
    check_pages(harness, refs[0], packed[0])
    assert copies == ["copy"]


def test_one_without_a_good_packed_file_and_without_a_folder_fails_and_frees_its_pages(
    make: Make, cache: PackedCache, refs: list[AdapterRef], packed: list[PackedAdapter]
) -> None:
    ref, harness = refs[0], make(num_pages=2)
    os.truncate(file_of(cache, ref), 20_000)
    shutil.rmtree(ref.uri)
    harness.loader.acquire(ref)
    (failure,) = harness.until(lambda: ref.digest not in harness.loader.adapters)
    assert failure.digest == ref.digest and "no such folder" in failure.error.message
    harness.load(refs[1])
    check_pages(harness, refs[1], packed[1])


def test_an_adapter_that_is_deleted_between_its_chunks_is_served_and_then_leaves(
    make: Make, refs: list[AdapterRef], packed: list[PackedAdapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requests that have it were admitted before."""
    ref, harness, gate = refs[0], make(), Gate(monkeypatch)
    harness.loader.acquire(ref)
    assert gate.begun.wait(DEADLINE_S)
    harness.loader.evict(ref.digest)
    gate.open()
    harness.until(lambda: harness.loader.adapters.is_ready(ref.digest))
    check_pages(harness, ref, packed[0])
    harness.loader.release(ref.digest)
    harness.loader.adapters.check_invariants()
    assert not harness.loader.adapters and ref.digest not in harness.host_cache


def test_one_that_is_cancelled_and_deleted_between_its_chunks_keeps_its_pages_until_nobody_writes_them(
    make: Make, refs: list[AdapterRef], packed: list[PackedAdapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    ref, harness, gate = refs[0], make(num_pages=2), Gate(monkeypatch)
    harness.loader.acquire(ref)
    assert gate.begun.wait(DEADLINE_S)
    harness.loader.release(ref.digest)
    harness.loader.evict(ref.digest)
    harness.loader.acquire(refs[1])
    harness.loader.poll()
    assert harness.pool.groups["o"].pages.num_free == 0 and not harness.loader.adapters.pages(refs[1].digest)
    gate.open()
    harness.until(lambda: harness.loader.adapters.is_ready(refs[1].digest))
    check_pages(harness, refs[1], packed[1])
    assert ref.digest not in harness.loader.adapters and ref.digest not in harness.host_cache


def test_one_that_is_cancelled_and_deleted_while_its_folder_is_read_leaves_nothing_behind(
    make: Make, refs: list[AdapterRef], cache: PackedCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has pages all the while, and is staged only then, with nobody left to copy it for."""
    gate = Event()
    reads, ref, harness = gate_reads(monkeypatch, gate), refs[0], make(num_pages=2)
    harness.loader.acquire(ref)
    harness.until(lambda: bool(reads) and not harness.loader.adapters.is_copying)
    assert state(harness, ref) is AdapterState.STREAMING
    harness.loader.release(ref.digest)
    harness.loader.evict(ref.digest)
    gate.set()
    harness.until(lambda: ref.digest not in harness.loader.adapters)
    assert harness.pool.groups["o"].pages.num_free == 2 and ref.digest not in harness.host_cache
    settle(harness.loader)
    assert not list(cache.folder.rglob(f"*{ref.digest}*"))


def test_without_free_pages_it_is_read_to_the_host_and_copied_later(
    make: Make, refs: list[AdapterRef], packed: list[PackedAdapter], copies: list[str]
) -> None:
    harness = make(num_pages=2)
    harness.load(refs[0])
    harness.loader.acquire(refs[1])
    harness.until(lambda: refs[1].digest in harness.host_cache)
    harness.loader.poll()
    assert not harness.loader.adapters.is_copying and not copies
    harness.loader.release(refs[0].digest)
    harness.until(lambda: harness.loader.adapters.is_ready(refs[1].digest))
    check_pages(harness, refs[1], packed[1])
    assert copies == ["copy"]


def test_steps_are_not_delayed_for_one_that_is_hashed_and_packed(
    make: Make, refs: list[AdapterRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Event()
    reads = gate_reads(monkeypatch, gate)
    harness = make()
    harness.loader.acquire(refs[0])
    harness.until(lambda: bool(reads) and not harness.loader.adapters.is_copying)
    assert state(harness, refs[0]) is AdapterState.STREAMING
    gate.set()
    harness.until(lambda: harness.loader.adapters.is_ready(refs[0].digest))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_links_rate_is_learnt_from_chunks(
    make: Make, refs: list[AdapterRef], packed: list[PackedAdapter], copies: list[str], device: str
) -> None:
    """Without a whole copy from host memory, too, steps know how long they would wait for layers."""
    harness = make(num_pages=2 * len(refs), device=device)
    harness.load(refs[0])
    assert harness.loader._writer._forecast._rate > 0 and not copies


def test_a_gpus_chunk_takes_the_time_since_the_one_before_at_most() -> None:
    def chunk(num_bytes: int, end_ms: float) -> page_stream._ChunkCopy:
        end: Any = SimpleNamespace(ms=end_ms, elapsed_time=lambda later: later.ms - end_ms)
        return page_stream._ChunkCopy(num_bytes, 9.0, end)

    stream = PageStream(*[SimpleNamespace()] * 6)  # type: ignore[arg-type]
    assert stream.fastest_copy() == (0, 0.0)
    stream._copies = [chunk(10, 1.0), chunk(10, 5.0), chunk(8, 7.0), chunk(10, 10.0)]
    assert stream.fastest_copy() == pytest.approx((8, 0.002))


def test_a_gpus_chunks_are_to_come_until_their_copies_have_ended() -> None:
    ended: set[int] = set()

    def chunk(number: int, num_bytes: int) -> page_stream._ChunkCopy:
        end: Any = SimpleNamespace(query=lambda: number in ended)
        return page_stream._ChunkCopy(num_bytes, 9.0, end)

    stream = PageStream(*[SimpleNamespace()] * 6)  # type: ignore[arg-type]
    stream._copies = [chunk(0, 10), chunk(1, 20), chunk(2, 30)]
    assert stream.bytes_to_come() == 60
    ended |= {0, 1}
    assert stream.bytes_to_come() == 30
    ended.add(2)
    assert stream.bytes_to_come() == 0


def test_a_chunk_that_is_not_read_in_time_fails_its_requests_alone_and_never_reaches_the_pages_of_another(
    make: Make, refs: list[AdapterRef], packed: list[PackedAdapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_load, "_READ_TIMEOUT_S", 0.03)
    ref, harness, gate = refs[0], make(num_pages=2), Gate(monkeypatch)
    harness.loader.acquire(ref)
    assert gate.others_done.wait(DEADLINE_S)
    harness.loader.poll()  # notices that it is read
    time.sleep(0.05)
    (failure,) = harness.loader.poll()
    assert failure.digest == ref.digest and not failure.permanent and "does not answer" in failure.error.message
    assert ref.digest not in harness.loader.adapters and harness.pool.groups["o"].pages.num_free == 2
    copy = harness.host_cache.make(
        refs[1].digest, packed[1].num_bytes + (1 << 16), lambda memory: copied(memory, packed[1], refs[1], harness)
    )
    harness.host_cache.release(copy)
    harness.load(refs[1])
    gate.open()
    harness.until(lambda: ref.digest in harness.host_cache)
    check_pages(harness, refs[1], packed[1])
    harness.loader.release(refs[1].digest)
    harness.load(ref)
    check_pages(harness, ref, packed[0])


@pytest.mark.parametrize("mode", ["wait", "layerwise"])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_requests_say_from_packed_files_what_they_say_from_folders(
    make_llama: Callable[..., Path], tmp_path: Path, mode: ColdStart, is_damaged: bool
) -> None:
    folder = make_llama(num_hidden_layers=NUM_LAYERS)
    refs, cache = cold_adapters(folder, tmp_path, 2), PackedCache(tmp_path / "cache", 1 << 30)
    requests = [cold_request(f"{number}", ref) for number, ref in enumerate(refs)]
    said = []
    for packed_cache in (None, cache, cache):
        engine = Engine(EngineConfig(model=folder, **_SETTINGS, cold_start=mode), "cpu", packed_cache=packed_cache)
        said.append(run_requests(engine, *requests))
        if packed_cache is not None:
            settle(engine._loader)
        engine.close()
        if is_damaged:
            for file in (cache.folder / "packed").glob("*/*"):
                file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert said[0] == said[1] == said[2] and not said[0][1]
    assert len(list((cache.folder / "packed").glob("*/*"))) == 2


def test_a_load_that_can_not_go_on_ends_all_that_it_has_begun(
    make: Make, refs: list[AdapterRef], packed: list[PackedAdapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads read chunks meanwhile, into memory that is free afterwards."""

    def fail(*_: object) -> PackedAdapter:
        raise RuntimeError("no memory for tables")

    harness = make()
    with monkeypatch.context() as patch:
        patch.setattr(packed_store, "packed_views", fail)
        harness.loader.acquire(refs[0])
        (failure,) = harness.until(lambda: not harness.loader.adapters)
    assert failure.digest == refs[0].digest and harness.host_cache.used_bytes == 0
    harness.load(refs[0])
    check_pages(harness, refs[0], packed[0])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.timeout(600)])])
def test_a_step_that_goes_by_layers_waits_on_the_device_for_the_last_copies(
    make_llama: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """And for no thread: a wait for the copies on the host would hold until the step was launched."""
    folder = make_llama(num_hidden_layers=NUM_LAYERS)
    refs, cache = cold_adapters(folder, tmp_path, 1), PackedCache(tmp_path / "cache", 1 << 30)
    request, joined = cold_request("cold", refs[0]), Event()
    join, wait = StepArrivals.join, PageStream.wait

    def note(arrivals: StepArrivals, digest: str) -> None:
        join(arrivals, digest)
        joined.set()

    def held(stream: PageStream) -> None:
        assert joined.wait(DEADLINE_S)
        wait(stream)

    config = EngineConfig(model=folder, **_SETTINGS, max_batch_size=4, prefill_budget_tokens=16)
    said = []
    for _ in range(2):
        engine = Engine(config, device, packed_cache=cache)
        said.append(run_requests(engine, request))
        settle(engine._loader)
        engine.close()
        monkeypatch.setattr(PageStream, "wait", held)
        monkeypatch.setattr(StepArrivals, "join", note)
    assert joined.is_set() and said[0] == said[1] and not said[0][1]
