"""Disks that fail, hang or fill up cost packed adapters, and never an error."""

import errno
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from packed_worker import Worker, equal, held
from punica_serve.adapters.folder import read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters import chunk_job, disk_watch, packed_chunk, packed_file, packed_store
from punica_serve.protocol import AdapterRef
from waits import DEADLINE_S


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


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
def test_a_shortage_of_the_worker_drops_no_good_file(
    folder: Path, model: ModelConfig, ref: AdapterRef, packings: list[str], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Worker(folder, model)
    first.packs(ref)

    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    second = Worker(folder, model)
    with monkeypatch.context() as patch:
        patch.setattr(chunk_job, "open_own_file", fail)
        copy = second.load(ref)
    assert equal(copy, held(first, ref)) and second.store.has(ref)
    second.cache.release(copy)
    second.cache.evict(ref.digest)
    assert equal(second.load(ref), held(first, ref)) and packings == [ref.digest] * 2


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
    num_threads = worker.store._threads._num_threads
    begun, go_on, original = threading.Semaphore(0), threading.Event(), packed_chunk.read_checked

    def read(*arguments: Any) -> float:
        if not go_on.is_set():
            begun.release()
            assert go_on.wait(DEADLINE_S)
        return original(*arguments)

    monkeypatch.setattr(chunk_job, "read_checked", read)
    monkeypatch.setattr(disk_watch, "_HANG_S", 0.02)
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
    original = packed_chunk.read_checked

    def read(*arguments: Any) -> float:
        time.sleep(0.1)
        return original(*arguments)

    monkeypatch.setattr(chunk_job, "read_checked", read)
    monkeypatch.setattr(disk_watch, "_HANG_S", 0.5)
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
