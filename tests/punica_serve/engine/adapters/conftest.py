"""A model whose adapters are packed in several chunks, adapters of it, the folder of packed files, and loaders."""

from collections.abc import Iterator
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

import pytest
import torch

from loader_harness import LoaderHarness
from packed_loads import Make
from packed_worker import Worker
from punica_serve.adapters.folder import load_adapter, read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters import chunk_job
from punica_serve.engine.adapters.adapter_packer import pack_adapter
from punica_serve.engine.adapters.host_cache import HostCopy
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.engine.adapters.packed_chunk import Chunk, read_checked
from punica_serve.engine.adapters.packed_store import PackedStore
from punica_serve.engine.adapters.packing import PackedAdapter, packed_num_bytes
from punica_serve.engine.adapters.range_reader import RangeReader
from punica_serve.engine.adapters.reader import AdapterReader
from punica_serve.engine.memory.pinned_memory import HostMemory
from punica_serve.protocol import AdapterRef
from punica_serve.store.packed_folder import PackedCache
from reader_processes import process_of, wait_until_ready


@pytest.fixture(autouse=True)
def _nothing_is_written_after_a_test() -> Iterator[None]:
    """The next one may have patched what writes."""
    yield
    while Worker.all:
        worker = Worker.all.pop()
        worker.reader._threads.shutdown()
        worker.store._writer.shutdown()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def model(tiny_model: ModelConfig) -> ModelConfig:
    """A model whose adapters have several chunks."""
    return replaced(tiny_model, num_hidden_layers=7)


@pytest.fixture
def ref(model: ModelConfig, tmp_path: Path) -> AdapterRef:
    return read_adapter(write_random_adapter(tmp_path / "adapter", model, rank=12, seed=1, lora_alpha=7), model)


@pytest.fixture
def packings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Digests of the adapters that were read from their folders."""
    seen: list[str] = []
    original = AdapterReader._pack_folder

    def pack(self: AdapterReader, ref: AdapterRef) -> HostCopy:
        seen.append(ref.digest)
        return original(self, ref)

    monkeypatch.setattr(AdapterReader, "_pack_folder", pack)
    yield seen


@pytest.fixture
def cache(folder: Path) -> PackedCache:
    return PackedCache(folder, 1 << 30)


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

    def make(num_pages: int = 4, device: str = "cpu") -> LoaderHarness:
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


@pytest.fixture
def made(folder: Path, model: ModelConfig, ref: AdapterRef, packings: list[str]) -> HostCopy:
    """The adapter as threads read it from its packed file, which is there by now."""
    Worker(folder, model).packs(ref)
    copy = Worker(folder, model).load(ref)
    packings.clear()
    return copy


@pytest.fixture
def worker(folder: Path, model: ModelConfig) -> Iterator[Worker]:
    """Its process is ready."""
    worker = Worker(folder, model, shared=HostMemory(1 << 25, is_shared=True))
    wait_until_ready(process_of(worker))
    yield worker
    worker.reader.close()


@pytest.fixture
def thread_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The starts of chunks that threads have read."""
    starts: list[int] = []

    def read(file: RangeReader, chunk: Chunk, *piece: Any) -> float:
        starts.append(chunk.place.start)
        return read_checked(file, chunk, *piece)

    monkeypatch.setattr(chunk_job, "read_checked", read)
    return starts
