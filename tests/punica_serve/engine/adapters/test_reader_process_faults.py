"""Whatever becomes of the process that reads packed files costs no load."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from packed_worker import Worker, equal
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters import chunk_reads, disk_watch, reader_process
from punica_serve.engine.adapters.disk_watch import DiskWatch, Patience
from punica_serve.engine.adapters.host_cache import HostCopy
from punica_serve.engine.adapters.reader_process import MAX_LOADS
from punica_serve.engine.memory.pinned_memory import HostMemory
from punica_serve.protocol import AdapterRef
from reader_processes import (
    Start,
    evict,
    is_alive,
    lanes_of,
    pid_of,
    process_of,
    streaming,
    wait_until_ready,
    warnings,
)
from waits import DEADLINE_S, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no memory files")

_WORKER = """
import sys, time
from punica_serve.engine.adapters.disk_watch import DiskWatch
from punica_serve.engine.adapters.reader_process import ReaderProcess
from punica_serve.engine.memory.pinned_memory import HostMemory
process = ReaderProcess(HostMemory(1 << 20, is_shared=True), 2, DiskWatch())
print(process.start(100), flush=True)
time.sleep(1000)
"""


@pytest.fixture(params=["by a thread", "by the step loop"])
def start(request: pytest.FixtureRequest, model: ModelConfig) -> Start:
    """Loads an adapter: who begins."""
    return (lambda worker, ref: worker.reader.start(ref)) if request.param == "by a thread" else streaming(model)


@pytest.mark.parametrize("place", [0, 4096, -1])
def test_damage_that_the_process_finds_has_the_file_made_again(
    worker: Worker, folder: Path, ref: AdapterRef, made: HostCopy, packings: list[str], start: Start, place: int
) -> None:
    """As often as it happens: a lane has no records of the load before."""
    (path,) = (folder / "packed" / ref.digest).iterdir()
    content = path.read_bytes()
    damaged = bytearray(content)
    damaged[place] ^= 1
    for number in range(2 * MAX_LOADS):
        path.write_bytes(content if number % 2 else damaged)
        copy = start(worker, ref).result(DEADLINE_S)
        assert equal(copy, made) and packings == [ref.digest] * (number // 2 + 1)
        worker.settle()
        evict(worker, copy)
    assert len(lanes_of(worker)) == MAX_LOADS


def test_a_file_that_others_may_have_written_is_made_again_and_the_log_says_why(
    worker: Worker,
    folder: Path,
    ref: AdapterRef,
    made: HostCopy,
    packings: list[str],
    caplog: pytest.LogCaptureFixture,
    start: Start,
) -> None:
    (path,) = (folder / "packed" / ref.digest).iterdir()
    path.chmod(0o666)
    assert equal(start(worker, ref).result(DEADLINE_S), made) and packings == [ref.digest]
    assert ["others may have written it" in message for message in caplog.messages] == [True]


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
    monkeypatch.setattr(disk_watch, "_HANG_S", 2 * DEADLINE_S)
    if fate == "stopped, then killed":
        monkeypatch.setattr(chunk_reads, "LOOK_S", 2 * DEADLINE_S)  # the load itself would kill it before we do
    pid = pid_of(worker)
    os.kill(pid, signal.SIGKILL if fate == "killed" else signal.SIGSTOP)
    load = start(worker, ref)
    if fate == "stopped, then killed":
        wait_for(load.running)
        os.kill(pid, signal.SIGKILL)
    copy = load.result(DEADLINE_S)
    assert equal(copy, made) and thread_reads and not packings, "threads have read the packed file"
    evict(worker, copy)
    wait_for(lambda: not is_alive(pid))
    assert equal(start(worker, ref).result(DEADLINE_S), made)
    assert len(warnings(caplog)) == 1, warnings(caplog)


def test_a_process_that_does_not_die_is_killed_and_waited_for_once(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk may hold it in the kernel, and each load that waits for it finds it silent."""

    def wait(popen: Any, timeout_s: float) -> None:
        raise subprocess.TimeoutExpired(popen.args, timeout_s)

    monkeypatch.setattr(disk_watch, "_HANG_S", 0.0)
    process, child = process_of(worker), process_of(worker)._child
    assert child is not None
    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "wait", wait)
        assert all(process._end_silent(child, Patience(DiskWatch())) for _ in range(2))
    assert len(warnings(caplog)) == 1 and not child.takes_jobs


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


def test_a_process_that_is_stopped_while_it_starts_is_replaced(
    folder: Path,
    model: ModelConfig,
    ref: AdapterRef,
    made: HostCopy,
    thread_reads: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = Worker(folder, model, shared=HostMemory(1 << 25, is_shared=True))
    evict(worker, worker.load(ref))
    stopped = pid_of(worker)
    os.kill(stopped, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(reader_process, "_START_S", 0.0)
        evict(worker, worker.load(ref))
    assert not is_alive(stopped) and thread_reads and len(warnings(caplog)) == 1
    monkeypatch.setattr(reader_process, "_RESTART_S", 0.0)
    wait_until_ready(process_of(worker))
    thread_reads.clear()
    assert equal(worker.load(ref), made) and not thread_reads
    worker.reader.close()


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


def test_a_file_of_the_working_folder_hides_no_module(
    folder: Path, model: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit('an own module of that name')")
    monkeypatch.chdir(tmp_path)
    worker = Worker(folder, model, shared=HostMemory(1 << 25, is_shared=True))
    wait_until_ready(process_of(worker))
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
    wait_for(lambda: not is_alive(pid))
