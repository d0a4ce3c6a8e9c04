"""A process that is stopped or hangs while it reads costs its loads a moment; a slow disk is not mistaken for that."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from cold_requests import NUM_LAYERS, cold_adapters, cold_request, run_requests
from cold_requests import evict as evict_all
from packed_worker import Worker, equal
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.adapters import chunk_reads, disk_watch, reader_process
from punica_serve.engine.adapters.host_cache import HostCopy
from punica_serve.engine.adapters.reader_process import ReaderProcess
from punica_serve.engine.engine import Engine
from punica_serve.engine.memory.pinned_memory import HostMemory
from punica_serve.protocol import AdapterRef
from punica_serve.store.packed_folder import PackedCache
from reader_processes import evict, pid_of, process_of, streaming, wait_until_ready, warnings
from waits import DEADLINE_S, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no memory files")

_NUM_STOPS = 3
#: Python runs it when the process starts. A thread in ``slow`` is at work, as one in the kernel that waits for a disk.
_SLOW_DISK = """
import os, time
read = os.preadv
def slow(*arguments):
    end_s = time.monotonic() + 0.03
    while time.monotonic() < end_s:
        pass
    return read(*arguments)
os.preadv = slow
"""
#: After some reads all threads are at work for good.
_STUCK_DISK = """
import itertools, os
read, numbers = os.preadv, itertools.count()
def stuck(*arguments):
    while next(numbers) >= 8:
        pass
    return read(*arguments)
os.preadv = stuck
"""
#: All threads wait for a lock that nobody gives back, after some reads.
_DEADLOCK = """
import os, threading
read, left, lock = os.preadv, [None] * 4, threading.Lock()
lock.acquire()
def locked(*arguments):
    if not left:
        lock.acquire()
    left.pop()
    return read(*arguments)
os.preadv = locked
"""

#: Has all Python processes that start from now on run some code first.
RunFirst = Callable[[str], int]


@pytest.fixture
def run_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFirst:
    folder = tmp_path / "python"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    return (folder / "sitecustomize.py").write_text


@pytest.fixture(autouse=True)
def _a_slow_disk(run_first: RunFirst, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read of the process takes far longer than a load waits before it looks after the process."""
    run_first(_SLOW_DISK)
    monkeypatch.setattr(chunk_reads, "LOOK_S", 0.003)
    monkeypatch.setattr(disk_watch, "_HANG_S", 2 * DEADLINE_S)


def test_a_slow_disk_is_waited_for(
    worker: Worker, ref: AdapterRef, made: HostCopy, thread_reads: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    pid = pid_of(worker)
    assert equal(worker.load(ref), made)
    assert pid_of(worker) == pid and not thread_reads and not warnings(caplog)


def test_what_a_stopped_process_has_left_is_read_at_once_and_another_one_takes_its_place(
    model: ModelConfig,
    refs: list[AdapterRef],
    folder: Path,
    run_first: RunFirst,
    packings: list[str],
    thread_reads: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for ref in refs:
        Worker(folder, model).packs(ref)
    fresh = [Worker(folder, model).load(ref) for ref in refs]
    thread_reads.clear()
    packings.clear()
    run_first(_STUCK_DISK)
    worker = Worker(folder, model, shared=HostMemory(1 << 25, is_shared=True))
    with closing(worker.reader):
        wait_until_ready(process_of(worker))
        watch, pid = worker.store._watch, pid_of(worker)
        loads = [streaming(model)(worker, ref) for ref in refs]
        wait_for(lambda: watch.newest_chunk_s)
        assert not thread_reads and not all(load.done() for load in loads)
        os.kill(pid, signal.SIGSTOP)
        copies = [load.result(DEADLINE_S) for load in loads]
        assert all(map(equal, copies, fresh)) and thread_reads and not packings
        (warning,) = warnings(caplog)
        assert "stopped by a signal" in warning

        monkeypatch.setattr(reader_process, "_RESTART_S", 0.0)
        run_first(_SLOW_DISK)
        wait_until_ready(process_of(worker))
        thread_reads.clear()
        evict(worker, copies[0])
        assert equal(worker.load(refs[0]), fresh[0]) and not thread_reads and pid_of(worker) != pid


def test_what_a_process_that_hangs_has_left_is_read_soon(
    folder: Path,
    model: ModelConfig,
    ref: AdapterRef,
    made: HostCopy,
    run_first: RunFirst,
    packings: list[str],
    thread_reads: list[int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    run_first(_DEADLOCK)
    worker = Worker(folder, model, shared=HostMemory(1 << 25, is_shared=True))
    wait_until_ready(process_of(worker))
    assert equal(worker.load(ref), made)
    (warning,) = warnings(caplog)
    assert "hangs, and waits for no disk" in warning and thread_reads and not packings
    worker.reader.close()


@pytest.mark.slow
def test_no_token_is_lost_while_the_process_is_stopped_again_and_again(
    make_llama: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reader_process, "_RESTART_S", 0.0)
    folder = make_llama(num_hidden_layers=NUM_LAYERS)
    refs, cache = cold_adapters(folder, tmp_path, 4), PackedCache(tmp_path / "cache", 1 << 30)
    config = EngineConfig(model=folder, dtype="float32", page_size=4, num_kv_pages=256, num_lora_pages=64)
    cold = [cold_request(f"{number}", ref) for number, ref in enumerate(refs)]
    requests = [cold_request("decode", None, max_tokens=100), *cold]
    with closing(Engine(config, "cpu", packed_cache=cache)) as engine:
        process = _process_of(engine)
        wait_until_ready(process)
        expected, _ = run_requests(engine, *requests)
        with _stopped_again_and_again(process):
            deadline_s = time.monotonic() + DEADLINE_S
            while sum("stopped by a signal" in warning for warning in warnings(caplog)) < _NUM_STOPS:
                assert time.monotonic() < deadline_s
                evict_all(engine, *refs)
                tokens, failures = run_requests(engine, *requests)
                assert tokens == expected and not failures


@contextmanager
def _stopped_again_and_again(process: ReaderProcess) -> Iterator[None]:
    is_over = Event()

    def stop() -> None:
        while not is_over.wait(0.2):
            if (child := process._child) is not None and child.takes_jobs:
                child.popen.send_signal(signal.SIGSTOP)

    thread = Thread(target=stop)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _process_of(engine: Engine) -> ReaderProcess:
    store = engine._loader._host._reader._packed_store
    assert store is not None and store._process is not None
    return store._process
