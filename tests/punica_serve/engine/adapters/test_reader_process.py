"""A process reads packed files into the host cache's memory. Whatever becomes of it costs no load."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

from cold_requests import NUM_LAYERS, cold_adapters, cold_request, run_requests
from packed_worker import CPU, Worker, equal
from punica_serve.adapters.folder import read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.lora_layout import pages_needed
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.adapters import chunk_reads, disk_watch, reader_process
from punica_serve.engine.adapters.host_cache import HostCopy
from punica_serve.engine.adapters.load_trace import LoadTrace
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.engine.adapters.packed_chunk import Chunk, read_chunk
from punica_serve.engine.adapters.packed_file import PackedLayout
from punica_serve.engine.adapters.packing import packed_memory
from punica_serve.engine.adapters.page_stream import PageStream
from punica_serve.engine.adapters.range_reader import RangeReader
from punica_serve.engine.adapters.reader import AdapterReader
from punica_serve.engine.adapters.reader_process import _NUM_LANES, ReaderProcess
from punica_serve.engine.engine import Engine
from punica_serve.engine.memory.pinned_memory import HostMemory
from punica_serve.protocol import AdapterRef
from punica_serve.store.packed_folder import PackedCache
from waits import DEADLINE_S, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no memory files")

_WORKER = """
import sys, time
from punica_serve.engine.adapters.disk_watch import DiskWatch
from punica_serve.engine.adapters.reader_process import ReaderProcess
from punica_serve.engine.engine import Engine
from punica_serve.engine.memory.pinned_memory import HostMemory
process = ReaderProcess(HostMemory(1 << 20, is_shared=True), 2, DiskWatch())
while True:
    with process._lock:
        if process._look():
            break
    time.sleep(0.01)
print(process._child.popen.pid, flush=True)
time.sleep(1000)
"""


#: Begins a load.
Start = Callable[[Worker, AdapterRef], Future[HostCopy]]


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

    def read(file: RangeReader, chunk: Chunk) -> None:
        starts.append(chunk.place.start)
        read_chunk(file, chunk)

    monkeypatch.setattr(chunk_reads, "read_chunk", read)
    return starts


@pytest.fixture(params=["by a thread", "by the step loop"])
def start(request: pytest.FixtureRequest, model: ModelConfig) -> Start:
    """Loads an adapter: who begins."""
    return (lambda worker, ref: worker.reader.start(ref)) if request.param == "by a thread" else streaming(model)


def streaming(model: ModelConfig, pool: LoraPool | None = None) -> Start:
    """Loads as the step loop begins them, with pages that are filled meanwhile."""
    pool = pool or LoraPool(model, num_pages=4, dtype=torch.float32, device=CPU)

    def start(worker: Worker, ref: AdapterRef) -> Future[HostCopy]:
        pages = pool.allocate(pages_needed(ref.ranks))
        load = worker.reader.start(ref, PageStream(pool, pages, (), None, lambda: None, LoadTrace(ref.digest)))
        load.add_done_callback(lambda _: pool.free(pages))
        return load

    return start


def evict(worker: Worker, copy: HostCopy) -> None:
    worker.cache.release(copy)
    worker.cache.evict(copy.digest)


def wait_for(holds: Callable[[], object]) -> None:
    asyncio.run(until(holds))


def process_of(worker: Worker) -> ReaderProcess:
    assert worker.store._process is not None
    return worker.store._process


def pid_of(worker: Worker) -> int:
    child = process_of(worker)._child
    assert child is not None
    return child.popen.pid


def lanes_of(worker: Worker) -> dict[int, Any]:
    child = process_of(worker)._child
    assert child is not None
    return child.free_lanes


def wait_until_ready(process: ReaderProcess) -> None:
    def is_ready() -> bool:
        with process._lock:
            return process._look()

    wait_for(is_ready)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "process that reads" in record.getMessage()]


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
    assert not caplog.records and worker.cache.used_bytes < 2 * made.num_bytes and len(lanes_of(worker)) == _NUM_LANES


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


@pytest.mark.parametrize("place", [0, 4096, -1])
def test_damage_that_the_process_finds_has_the_file_made_again(
    worker: Worker, folder: Path, ref: AdapterRef, made: HostCopy, packings: list[str], start: Start, place: int
) -> None:
    """As often as it happens: a lane has no records of the load before."""
    (path,) = (folder / "packed" / ref.digest).iterdir()
    content = path.read_bytes()
    damaged = bytearray(content)
    damaged[place] ^= 1
    for number in range(2 * _NUM_LANES):
        path.write_bytes(content if number % 2 else damaged)
        copy = start(worker, ref).result(DEADLINE_S)
        assert equal(copy, made) and packings == [ref.digest] * (number // 2 + 1)
        worker.settle()
        evict(worker, copy)
    assert len(lanes_of(worker)) == _NUM_LANES


@pytest.mark.parametrize("fate", ["killed", "stopped", "stopped, then killed"])
def test_a_load_outlives_the_process(
    worker: Worker,
    ref: AdapterRef,
    made: HostCopy,
    packings: list[str],
    thread_reads: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    start: Start,
    fate: str,
) -> None:
    if fate == "stopped":
        monkeypatch.setattr(disk_watch, "_HANG_S", 0.2)
    pid = pid_of(worker)
    os.kill(pid, signal.SIGKILL if fate == "killed" else signal.SIGSTOP)
    load = start(worker, ref)
    if fate == "stopped, then killed":
        wait_for(load.running)
        os.kill(pid, signal.SIGKILL)
    copy = load.result(DEADLINE_S)
    assert equal(copy, made) and thread_reads and not packings, "threads have read the packed file"
    evict(worker, copy)
    wait_for(lambda: not _is_alive(pid))
    assert equal(start(worker, ref).result(DEADLINE_S), made)
    assert len(warnings(caplog)) == 1, warnings(caplog)


def test_a_process_that_died_is_started_again(
    worker: Worker, ref: AdapterRef, made: HostCopy, thread_reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = pid_of(worker)
    os.kill(pid, signal.SIGKILL)
    with process_of(worker)._lock:
        wait_for(lambda: not process_of(worker)._look() and process_of(worker)._child is None)
    monkeypatch.setattr(reader_process, "_RESTART_S", 0.0)
    wait_until_ready(process_of(worker))
    assert pid_of(worker) != pid
    assert equal(worker.load(ref), made) and not thread_reads


def test_a_process_that_can_not_be_started_is_told_once(
    folder: Path,
    model: ModelConfig,
    ref: AdapterRef,
    made: HostCopy,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", fail)
    worker = Worker(folder, model, shared=HostMemory(1 << 25, is_shared=True))
    for _ in range(2):
        copy = worker.load(ref)
        assert equal(copy, made)
        evict(worker, copy)
    assert len([record for record in caplog.records if "no process can be started" in record.message]) == 1
    worker.reader.close()


def test_it_ends_with_its_store(worker: Worker) -> None:
    child = process_of(worker)._child
    assert child is not None and child.popen.poll() is None
    worker.reader.close()
    assert child.popen.returncode == -signal.SIGKILL


def test_it_ends_with_its_worker() -> None:
    with subprocess.Popen([sys.executable, "-c", _WORKER], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        pid = int(worker.stdout.readline())
        worker.kill()
    wait_for(lambda: not _is_alive(pid))


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


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
