"""Packed adapters on the disk: read as they were written, or dropped and made again, and never an error."""

import errno
import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from engine_fixtures import MakeAdapter
from punica_serve.adapters.folder import read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters import packed_file, packed_store
from punica_serve.engine.adapters.host_cache import HostCache, HostCopy
from punica_serve.engine.adapters.packed_file import PackedLayout
from punica_serve.engine.adapters.packed_store import PackedStore
from punica_serve.engine.adapters.packing import packed_memory
from punica_serve.engine.adapters.reader import AdapterReader
from punica_serve.engine.memory.pinned_memory import HostMemory
from punica_serve.errors import ConfigError
from punica_serve.protocol import AdapterRef
from punica_serve.store.packed_folder import PackedCache, PackedFolder
from waits import DEADLINE_S

CPU = torch.device("cpu")
GB = 1 << 30


class Worker:
    """One process's reader, with a cold host cache."""

    #: Workers of the running test.
    all: ClassVar[list["Worker"]] = []

    def __init__(self, folder: Path, model: ModelConfig, dtype: torch.dtype = torch.float32, budget: int = GB) -> None:
        self.store = PackedStore(PackedCache(folder, budget), model, dtype)
        self.cache = HostCache(HostMemory(1 << 25))
        self.reader = AdapterReader(self.cache, model, dtype, CPU, self.store)
        self.all.append(self)

    def load(self, ref: AdapterRef) -> HostCopy:
        return self.reader.start(ref).result(DEADLINE_S)

    def settle(self) -> None:
        """Waits for what is written and removed in the background."""
        self.store._writer.submit(lambda: None).result(DEADLINE_S)

    def packs(self, ref: AdapterRef) -> Path:
        """Loads an adapter for the first time; returns its packed file."""
        self.cache.release(self.load(ref))
        self.settle()
        (file,) = (self.store._folder.packed._root / ref.digest).iterdir()
        return file


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


def equal(one: HostCopy, other: HostCopy) -> bool:
    return all(
        torch.equal(getattr(pages, part), getattr(other.packed.groups[name], part))
        for name, pages in one.packed.groups.items()
        for part in ("a", "b")
    )


def held(worker: Worker, ref: AdapterRef) -> HostCopy:
    copy = worker.cache.get(ref.digest)
    assert copy is not None
    return copy


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_second_load_reads_what_the_first_has_packed(
    folder: Path, model: ModelConfig, ref: AdapterRef, packings: list[str], dtype: torch.dtype
) -> None:
    first, second = Worker(folder, model, dtype), Worker(folder, model, dtype)
    packed = first.load(ref)
    first.settle()
    shutil.rmtree(ref.uri)  # it needs the folder no more
    assert equal(second.load(ref), packed)
    assert packings == [ref.digest]


def test_ranks_and_modules_that_are_not_full(
    folder: Path, tiny_model: ModelConfig, make_adapter: MakeAdapter, packings: list[str]
) -> None:
    options: dict[str, Any]
    for options in ({"rank": 3}, {"rank": 20, "target_modules": ("q_proj", "down_proj")}):
        ref = make_adapter(**options)
        first, second = Worker(folder, tiny_model), Worker(folder, tiny_model)
        packed = first.load(ref)
        first.settle()
        assert equal(second.load(ref), packed)
    assert len(packings) == 2


def test_a_file_is_the_memory_behind_a_header(folder: Path, model: ModelConfig, ref: AdapterRef) -> None:
    worker = Worker(folder, model)
    file = worker.packs(ref)
    copy = held(worker, ref)
    content = file.read_bytes()[4096:]
    assert content == packed_memory(copy.packed, copy.num_bytes).numpy().tobytes()
    chunks = list(packed_file._chunks(np.frombuffer(content, dtype=np.uint8)))
    assert 8 < len(chunks) <= packed_file.MIN_CHUNKS and all(start % 4096 == 0 for start, _ in chunks)
    assert b"".join(chunk for _, chunk in chunks) == content


@pytest.mark.parametrize("megabytes", [80, 320, 640, 2000])
def test_threads_share_the_chunks_of_large_adapters_evenly(megabytes: int) -> None:
    """A last round of fewer chunks would leave threads idle."""
    memory = np.empty(megabytes * 1_000_000, dtype=np.uint8)  # nothing touches it, so the system gives no pages for it
    sizes = [len(chunk) for _, chunk in packed_file._chunks(memory)]
    assert sum(sizes) == len(memory) and len(sizes) % packed_file.MAX_READERS == 0
    assert len(sizes) >= packed_file.MIN_CHUNKS and min(sizes) > 0.9 * max(sizes)


def test_after_a_damaged_chunk_no_other_is_begun(
    folder: Path, model: ModelConfig, ref: AdapterRef, packings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Worker(folder, model).packs(ref)
    content = bytearray(file.read_bytes())
    content[4096] ^= 1
    file.write_bytes(content)
    monkeypatch.setattr(packed_store, "_MIN_READERS", 1)
    monkeypatch.setattr(packed_store, "_READERS_SHARE", 0.0)
    starts: list[int] = []
    original = packed_file.read_chunk

    def read(file: Any, chunk: Any) -> None:
        starts.append(chunk.start)
        original(file, chunk)

    monkeypatch.setattr(packed_store, "read_chunk", read)
    copy = Worker(folder, model).load(ref)
    assert starts == [0] and len(packings) == 2
    assert equal(copy, Worker(folder.parent / "other", model).load(ref))


@pytest.mark.parametrize("place", [0, 20, 30, 60, 4096, 9000, -5000, -1])
def test_one_changed_byte_is_found_and_the_file_made_again(
    folder: Path, model: ModelConfig, ref: AdapterRef, packings: list[str], place: int
) -> None:
    file = Worker(folder, model).packs(ref)
    whole = bytearray(file.read_bytes())
    whole[place] ^= 1
    file.write_bytes(whole)
    second = Worker(folder, model)
    copy = second.load(ref)
    second.settle()
    assert len(packings) == 2
    fresh = Worker(folder.parent / "other", model).load(ref)
    assert equal(copy, fresh)
    third = Worker(folder, model)
    assert equal(third.load(ref), fresh), "the file is good again"


@pytest.mark.parametrize("num_bytes", [0, 10, 100, 4096, 20_000])
def test_a_file_that_is_cut_short_is_made_again(
    folder: Path, model: ModelConfig, ref: AdapterRef, packings: list[str], num_bytes: int
) -> None:
    file = Worker(folder, model).packs(ref)
    size = file.stat().st_size
    os.truncate(file, num_bytes)
    second = Worker(folder, model)
    second.load(ref)
    second.settle()
    assert len(packings) == 2 and file.stat().st_size == size


def test_a_file_under_another_adapters_name_or_of_another_meaning_is_not_taken(
    folder: Path, model: ModelConfig, ref: AdapterRef, tmp_path: Path, packings: list[str]
) -> None:
    other = read_adapter(write_random_adapter(tmp_path / "b", model, rank=12, seed=2, lora_alpha=7), model)
    worker = Worker(folder, model)
    file = worker.packs(ref)
    (file.parent.parent / other.digest).mkdir()
    shutil.copy(file, file.parent.parent / other.digest / file.name)
    assert not equal(Worker(folder, model).load(other), Worker(folder, model).load(ref))
    assert packings == [ref.digest, other.digest]
    scaled = replace(ref, scalings=tuple(2 * scaling for scaling in ref.scalings))
    Worker(folder, model).load(scaled)
    assert packings[2:] == [ref.digest], "its configuration means something else now"


def test_another_dtype_or_model_has_files_of_its_own(
    folder: Path, model: ModelConfig, ref: AdapterRef, packings: list[str]
) -> None:
    names = {Worker(folder, model).packs(ref).name}
    names.add(PackedLayout.of(model, torch.bfloat16).name)
    names.add(PackedLayout.of(replaced(model, num_hidden_layers=8), torch.float32).name)
    assert len(names) == 3


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_disk_that_takes_nothing_costs_nobody_an_error(
    folder: Path,
    model: ModelConfig,
    ref: AdapterRef,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(packed_store, "write_packed", fail)
    worker = Worker(folder, model)
    for _ in range(3):
        worker.cache.release(worker.load(ref))
        worker.settle()
        worker.cache.evict(ref.digest)
    assert worker.cache.used_bytes == 0, "nothing is held"
    assert len([record for record in caplog.records if "can't be kept" in record.message]) == 1
    assert not list((folder / "packed" / "incoming").iterdir())


def test_a_file_of_another_version_is_not_taken(
    folder: Path, model: ModelConfig, ref: AdapterRef, packings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(packed_file, "_VERSION", packed_file._VERSION - 1)
        old = Worker(folder, model).packs(ref)
    new = old.rename(old.with_name(PackedLayout.of(model, torch.float32).name))
    assert new != old, "each version has names of its own"
    assert Worker(folder, model).packs(ref) == new
    assert packings == [ref.digest] * 2


def test_a_disk_that_can_not_be_read_costs_nobody_an_error(
    folder: Path, model: ModelConfig, ref: AdapterRef, packings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Worker(folder, model)
    first.packs(ref)

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", fail)
        second = Worker(folder, model)
        assert equal(second.load(ref), held(first, ref))
        second.settle()
    assert packings == [ref.digest] * 2


def test_a_disk_that_hangs_holds_its_own_load_alone(
    folder: Path, model: ModelConfig, tmp_path: Path, packings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are read from their folders meanwhile: those that wait behind it, and those that come later."""
    refs = [
        read_adapter(write_random_adapter(tmp_path / str(seed), model, rank=12, seed=seed, lora_alpha=7), model)
        for seed in range(3)
    ]
    for ref in refs:
        Worker(folder, model).packs(ref)
    fresh = [Worker(folder, model).load(ref) for ref in refs]
    packings.clear()
    worker = Worker(folder, model)
    num_threads = worker.store._readers._max_workers
    begun, go_on, original = threading.Semaphore(0), threading.Event(), packed_file.read_chunk

    def read(file: Any, chunk: Any) -> None:
        if not go_on.is_set():
            begun.release()
            assert go_on.wait(DEADLINE_S)
        original(file, chunk)

    monkeypatch.setattr(packed_store, "read_chunk", read)
    monkeypatch.setattr(packed_store, "_HANG_S", 0.02)
    hanging = worker.reader.start(refs[0])
    assert all(begun.acquire(timeout=DEADLINE_S) for _ in range(num_threads))
    assert equal(worker.load(refs[1]), fresh[1]) and equal(worker.load(refs[2]), fresh[2])
    assert packings == [refs[1].digest, refs[2].digest] and not hanging.done()
    go_on.set()
    copy = hanging.result(DEADLINE_S)
    assert equal(copy, fresh[0]) and worker.store.has(refs[0]), "nothing was dropped"


def test_a_disk_that_is_slow_is_waited_for(
    folder: Path, model: ModelConfig, tmp_path: Path, packings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adapter may wait for many chunks of others, which come one after the other."""
    refs = [
        read_adapter(write_random_adapter(tmp_path / str(seed), model, rank=12, seed=seed, lora_alpha=7), model)
        for seed in range(4)
    ]
    for ref in refs:
        Worker(folder, model).packs(ref)
    packings.clear()
    original = packed_file.read_chunk

    def read(file: Any, chunk: Any) -> None:
        time.sleep(0.1)
        original(file, chunk)

    monkeypatch.setattr(packed_store, "read_chunk", read)
    monkeypatch.setattr(packed_store, "_HANG_S", 0.5)
    worker = Worker(folder, model)
    reads = [worker.reader.start(ref) for ref in refs]
    assert all(read.result(DEADLINE_S) for read in reads) and not packings


def test_a_folder_that_is_gone_while_an_adapter_is_written_costs_nobody_an_error(
    folder: Path, model: ModelConfig, ref: AdapterRef, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    original = packed_file.write_packed

    def write(*arguments: object) -> None:
        shutil.rmtree(folder / "packed")
        original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(packed_store, "write_packed", write)
    worker = Worker(folder, model)
    worker.cache.release(worker.load(ref))
    worker.settle()
    worker.cache.evict(ref.digest)
    assert worker.cache.used_bytes == 0, "nothing is held"
    assert len([record for record in caplog.records if "can't be kept" in record.message]) == 1


@pytest.mark.parametrize("name", ["packed", "."])
def test_a_cache_that_an_operator_empties_is_filled_again(
    folder: Path, model: ModelConfig, ref: AdapterRef, name: str
) -> None:
    worker = Worker(folder, model)
    file = worker.packs(ref)
    worker.cache.evict(ref.digest)
    shutil.rmtree(folder / name)
    assert worker.packs(ref) == file and file.stat().st_size
    assert file.parents[1].stat().st_mode & 0o777 == 0o700


def test_a_disk_that_is_full_halfway_keeps_nothing(
    folder: Path, model: ModelConfig, ref: AdapterRef, packings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, num_writes = os.pwrite, 0

    def write(descriptor: int, content: memoryview, offset: int) -> int:
        nonlocal num_writes
        num_writes += 1
        if num_writes > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(descriptor, content[:100], offset)

    worker = Worker(folder, model)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", write)
        worker.cache.release(worker.load(ref))
        worker.settle()
    assert num_writes == 3 and not worker.store.has(ref)
    assert not list((folder / "packed" / "incoming").iterdir())
    worker.cache.evict(ref.digest)
    worker.packs(ref)
    assert equal(Worker(folder, model).load(ref), held(worker, ref))
    assert packings == [ref.digest] * 2


def test_an_adapter_that_is_removed_while_it_is_written_leaves_nothing(
    folder: Path, model: ModelConfig, ref: AdapterRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    original = packed_file.write_packed

    def slow(*arguments: object) -> None:
        begun.set()
        assert go_on.wait(DEADLINE_S)
        original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(packed_store, "write_packed", slow)
    worker = Worker(folder, model)
    worker.cache.release(worker.load(ref))
    assert begun.wait(DEADLINE_S)
    worker.reader.evict(ref.digest)
    go_on.set()
    worker.settle()
    worker.settle()
    assert not worker.store.has(ref)


def test_a_load_that_outlasts_the_removal_writes_nothing(
    folder: Path, model: ModelConfig, ref: AdapterRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    original = AdapterReader._pack_folder

    def slow(self: AdapterReader, ref: AdapterRef) -> HostCopy:
        begun.set()
        assert go_on.wait(DEADLINE_S)
        return original(self, ref)

    monkeypatch.setattr(AdapterReader, "_pack_folder", slow)
    worker = Worker(folder, model)
    load = worker.reader.start(ref)
    assert begun.wait(DEADLINE_S)
    worker.reader.evict(ref.digest)
    worker.settle()
    go_on.set()
    worker.cache.release(load.result(DEADLINE_S))
    worker.settle()
    assert not worker.store.has(ref)
    worker.cache.evict(ref.digest)
    worker.cache.release(worker.load(ref))  # registered again
    worker.settle()
    assert worker.store.has(ref)


def test_two_workers_that_pack_at_once_leave_one_good_file(
    folder: Path, model: ModelConfig, ref: AdapterRef, packings: list[str]
) -> None:
    workers = [Worker(folder, model) for _ in range(4)]
    loads = [worker.reader.start(ref) for worker in workers]
    copies = [load.result(DEADLINE_S) for load in loads]
    for worker in workers:
        worker.settle()
    before = len(packings)
    assert all(equal(copy, Worker(folder, model).load(ref)) for copy in copies)
    assert len(packings) == before


def test_a_load_marks_its_file_as_used_and_does_not_wait_for_that(
    folder: Path, model: ModelConfig, ref: AdapterRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Worker(folder, model).packs(ref)
    os.utime(file, ns=(1, 1))
    disk_answers, original = threading.Event(), PackedFolder.mark_used

    def mark_used(*arguments: Any) -> None:
        assert disk_answers.wait(DEADLINE_S)
        original(*arguments)

    monkeypatch.setattr(PackedFolder, "mark_used", mark_used)
    worker = Worker(folder, model)
    worker.load(ref)
    assert file.stat().st_mtime_ns == 1
    disk_answers.set()
    worker.settle()
    assert file.stat().st_mtime_ns > 1


def test_no_more_than_the_budget_is_kept(folder: Path, model: ModelConfig, tmp_path: Path) -> None:
    refs = [
        read_adapter(write_random_adapter(tmp_path / str(seed), model, rank=12, seed=seed, lora_alpha=7), model)
        for seed in range(4)
    ]
    size = Worker(tmp_path / "measure", model).packs(refs[0]).stat().st_size
    worker = Worker(folder, model, budget=2 * size + size // 2)
    for number, ref in enumerate(refs):
        os.utime(worker.packs(ref), ns=(number, number))
    assert [worker.store.has(ref) for ref in refs] == [False, False, True, True]


def test_what_others_may_have_written_is_not_trusted(
    folder: Path, model: ModelConfig, ref: AdapterRef, packings: list[str]
) -> None:
    file = Worker(folder, model).packs(ref)
    (folder / "packed").chmod(0o777)
    second = Worker(folder, model)
    assert not file.exists() and (folder / "packed").stat().st_mode & 0o777 == 0o700
    assert second.packs(ref) == file and len(packings) == 2


def test_a_folder_of_another_user_is_refused(folder: Path, model: ModelConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    Worker(folder, model)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ConfigError, match="another user"):
        Worker(folder, model)
