"""A process reads packed files into the host cache's memory."""

import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

from cold_requests import NUM_LAYERS, cold_adapters, cold_request, run_requests
from packed_worker import CPU, Worker, equal
from punica_serve.adapters.folder import read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.adapters.host_cache import HostCopy
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.engine.adapters.packed_file import PackedLayout
from punica_serve.engine.adapters.packed_header import PackedName
from punica_serve.engine.adapters.packing import packed_memory
from punica_serve.engine.adapters.range_reader import RangeReader
from punica_serve.engine.adapters.reader import AdapterReader
from punica_serve.engine.adapters.reader_process import MAX_LOADS
from punica_serve.engine.engine import Engine
from punica_serve.engine.memory.pinned_memory import HostMemory
from punica_serve.protocol import AdapterRef
from punica_serve.store.packed_folder import PackedCache
from reader_processes import lanes_of, process_of, streaming, wait_until_ready
from waits import DEADLINE_S, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no memory files")


def test_the_process_reads_what_threads_would(
    worker: Worker,
    folder: Path,
    model: ModelConfig,
    ref: AdapterRef,
    made: HostCopy,
    thread_reads: list[int],
    tmp_path: Path,
) -> None:
    second = read_adapter(write_random_adapter(tmp_path / "second", model, rank=5, seed=2), model)
    other = Worker(folder, model)
    packed = other.load(second)
    other.settle()
    for _ in range(3):
        copies = [load.result(DEADLINE_S) for load in (worker.reader.start(ref), worker.reader.start(second))]
        assert equal(copies[0], made) and equal(copies[1], packed)
        for copy in copies:
            worker.cache.release(copy)
            copy.packed.groups["qkv"].a.zero_()  # the next load writes it anew
            worker.cache.evict(copy.digest)
    assert not thread_reads


def test_direct_reads_are_the_processs_too(
    worker: Worker, ref: AdapterRef, made: HostCopy, thread_reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RangeReader, "_is_cached", lambda *_: False)
    assert equal(worker.load(ref), made) and not thread_reads


def test_memory_that_is_not_the_caches_is_read_into_by_threads(
    folder: Path, model: ModelConfig, ref: AdapterRef, made: HostCopy, thread_reads: list[int]
) -> None:
    worker = Worker(folder, model, shared=HostMemory(4096, is_shared=True))
    wait_until_ready(process_of(worker))
    copy = worker.load(ref)
    assert copy.start is None and equal(copy, made) and thread_reads
    worker.reader.close()


def test_the_first_loads_do_not_wait_for_the_process(
    folder: Path, model: ModelConfig, ref: AdapterRef, made: HostCopy, thread_reads: list[int]
) -> None:
    worker = Worker(folder, model, shared=HostMemory(1 << 25, is_shared=True))
    assert equal(worker.load(ref), made) and thread_reads
    wait_until_ready(process_of(worker))
    worker.reader.close()


def test_an_adapter_is_read_before_a_thread_wakes(
    worker: Worker, model: ModelConfig, ref: AdapterRef, made: HostCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    awake, read = Event(), AdapterReader._read

    def late(*arguments: Any) -> HostCopy:
        assert awake.wait(DEADLINE_S)
        return read(*arguments)

    monkeypatch.setattr(AdapterReader, "_read", late)
    pool = LoraPool(model, num_pages=2, dtype=torch.float32, device=CPU)
    load = streaming(model, pool)(worker, ref)
    content = packed_memory(made.packed, made.num_bytes)
    wait_for(lambda: torch.equal(worker.cache._memory.bytes[: made.num_bytes], content))
    assert not any(group.a.any() for group in pool.groups.values())
    awake.set()
    assert equal(load.result(DEADLINE_S), made)
    assert all(group.a.any() for group in pool.groups.values())


def test_what_was_begun_is_given_back_without_a_packed_file(
    worker: Worker,
    folder: Path,
    model: ModelConfig,
    ref: AdapterRef,
    made: HostCopy,
    packings: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    (folder / "packed" / ref.digest / PackedLayout.of(model, torch.float32).name).unlink()
    assert equal(streaming(model)(worker, ref).result(DEADLINE_S), made) and packings == [ref.digest]
    assert not caplog.records and worker.cache.used_bytes < 2 * made.num_bytes and len(lanes_of(worker)) == MAX_LOADS


@pytest.mark.parametrize("is_held", [False, True])
def test_a_full_cache_has_room_for_what_is_begun_unless_others_hold_it(
    folder: Path, model: ModelConfig, ref: AdapterRef, made: HostCopy, thread_reads: list[int], is_held: bool
) -> None:
    worker = Worker(folder, model, shared=HostMemory(made.num_bytes + 4096, is_shared=True))
    wait_until_ready(process_of(worker))
    other = worker.cache.make("other", made.num_bytes, lambda _: made.packed)
    if not is_held:
        worker.cache.release(other)
    copy = streaming(model)(worker, ref).result(DEADLINE_S)
    assert equal(copy, made) and bool(thread_reads) is ("other" in worker.cache) is is_held
    assert (copy.start is None) is is_held
    worker.reader.close()


def test_a_folder_whose_name_is_no_text_is_read_by_the_process(
    tmp_path: Path, model: ModelConfig, ref: AdapterRef, thread_reads: list[int]
) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    Worker(folder, model).packs(ref)
    made = Worker(folder, model).load(ref)
    thread_reads.clear()
    worker = Worker(folder, model, shared=HostMemory(1 << 25, is_shared=True))
    wait_until_ready(process_of(worker))
    assert equal(streaming(model)(worker, ref).result(DEADLINE_S), made) and not thread_reads
    worker.reader.close()


def test_an_engines_loads_come_from_its_process_which_ends_with_it(
    make_llama: Callable[..., Path], tmp_path: Path, thread_reads: list[int]
) -> None:
    folder = make_llama(num_hidden_layers=NUM_LAYERS)
    refs, cache = cold_adapters(folder, tmp_path, 2), PackedCache(tmp_path / "cache", 1 << 30)
    requests = [cold_request(f"{number}", ref) for number, ref in enumerate(refs)]
    config = EngineConfig(model=folder, dtype="float32", page_size=4, num_kv_pages=256, num_lora_pages=64)
    said = []
    for is_packed in (False, True):
        engine = Engine(config, "cpu", packed_cache=cache)
        store = engine._loader._host._reader._packed_store
        assert store is not None and store._process is not None
        said.append(run_requests(engine, requests[0]))
        if is_packed:
            wait_until_ready(store._process)
            thread_reads.clear()
        said.append(run_requests(engine, requests[1]))
        child = store._process._child
        assert (child is not None) is is_packed and not thread_reads
        store._writer.submit(lambda: None).result(DEADLINE_S)
        engine.close()
        assert child is None or child.popen.returncode == -signal.SIGKILL
    assert said[:2] == said[2:] and not any(failures for _, failures in said)


def test_the_first_load_after_a_reader_process_has_become_ready_begins_at_once(
    tiny_llama: Path, tmp_path: Path
) -> None:
    engine = Engine(EngineConfig(model=tiny_llama), "cpu", packed_cache=PackedCache(tmp_path / "cache", 1 << 20))
    store = engine._opening.tiers.packed_store
    assert store is not None and store._process is not None
    store.start_process(0.0)
    child = store._process._child
    assert child is not None and select.select([child.control], [], [], DEADLINE_S)[0], "it says that it is ready"
    room = engine.host_cache.reserve(4096)
    assert room is not None
    reads = store._process.begin_at_once(tmp_path / "none", PackedName("layout", "0" * 64), room.memory)
    assert reads is not None
    with reads:
        pass
    engine.close()
    assert child.popen.returncode == -signal.SIGKILL
