"""Packed adapters on the disk: read as they were written, removed with their adapters, and kept within a budget."""

import os
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_fixtures import MakeAdapter
from packed_worker import Worker, equal
from punica_serve.adapters.folder import read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters import packed_file, packed_store
from punica_serve.engine.adapters.host_cache import HostCopy
from punica_serve.engine.adapters.packing import packed_num_bytes
from punica_serve.engine.adapters.reader import AdapterReader
from punica_serve.errors import ConfigError
from punica_serve.protocol import AdapterRef
from punica_serve.store.packed_folder import PackedFolder
from waits import DEADLINE_S


@dataclass(frozen=True)
class HeldWrites:
    """Writes of packed files that wait."""

    begun: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)


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


@pytest.fixture
def held_writes(monkeypatch: pytest.MonkeyPatch) -> HeldWrites:
    """Files that have begun to be written, and the event for which they wait."""
    held, original = HeldWrites(), packed_file.write_packed

    def slow(*arguments: Any) -> None:
        held.begun.set()
        assert held.go_on.wait(DEADLINE_S)
        original(*arguments)

    monkeypatch.setattr(packed_store, "write_packed", slow)
    return held


@pytest.mark.parametrize("ends_meanwhile", [False, True])
def test_an_adapter_that_is_removed_while_it_is_written_leaves_nothing(
    folder: Path, model: ModelConfig, ref: AdapterRef, held_writes: HeldWrites, *, ends_meanwhile: bool
) -> None:
    worker = Worker(folder, model)
    worker.cache.release(worker.load(ref))
    assert held_writes.begun.wait(DEADLINE_S)
    worker.reader.evict(ref.digest)
    if ends_meanwhile:
        worker.reader.close()
    held_writes.go_on.set()
    worker.store._writer.shutdown()
    assert not worker.store.has(ref)


def test_few_adapters_wait_for_a_slow_disk_and_others_keep_no_memory(
    folder: Path, model: ModelConfig, tmp_path: Path, held_writes: HeldWrites
) -> None:
    refs = [
        read_adapter(write_random_adapter(tmp_path / str(seed), model, rank=12, seed=seed, lora_alpha=7), model)
        for seed in range(4)
    ]
    worker, used = Worker(folder, model), []
    for ref in refs:
        worker.cache.release(worker.load(ref))
        worker.cache.evict(ref.digest)
        used.append(worker.cache.used_bytes)
    assert used == [used[0], 2 * used[0], 2 * used[0], 2 * used[0]]
    held_writes.go_on.set()
    worker.settle()
    assert [worker.store.has(ref) for ref in refs] == [True, True, False, False]
    assert worker.cache.used_bytes == 0


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


def test_an_adapter_beyond_the_budget_is_not_kept_and_evicts_nothing(
    folder: Path, model: ModelConfig, ref: AdapterRef, tmp_path: Path
) -> None:
    small = read_adapter(write_random_adapter(tmp_path / "small", model, rank=3, seed=2, lora_alpha=7), model)
    budget = packed_num_bytes(ref.ranks, model, torch.float32) - 1
    worker = Worker(folder, model, budget=budget)
    worker.packs(small)
    worker.cache.release(worker.load(ref))
    worker.settle()
    assert worker.store.has(small) and not worker.store.has(ref)


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
