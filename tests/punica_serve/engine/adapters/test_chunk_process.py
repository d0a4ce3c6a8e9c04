"""The process that reads packed files, where the system starts no more threads for it."""

import mmap
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters import chunk_process
from punica_serve.engine.adapters.chunk_process import FAILED, INVALID, OPENED, OPENED_DIRECT, RECORD, ReadJob, _Reads
from punica_serve.engine.adapters.chunk_process import _submit as submit
from punica_serve.engine.adapters.host_cache import HostCopy
from punica_serve.engine.adapters.packed_file import PackedLayout, packed_name
from punica_serve.engine.adapters.packed_header import chunk_ranges
from punica_serve.engine.adapters.packing import packed_memory
from punica_serve.protocol import AdapterRef
from waits import DEADLINE_S

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no memory files")

_NUM_THREADS = 4


@pytest.fixture
def job(folder: Path, model: ModelConfig, ref: AdapterRef, made: HostCopy) -> ReadJob:
    """Reads the adapter from its packed file."""
    (path,) = (folder / "packed" / ref.digest).iterdir()
    return ReadJob(0, os.fsencode(path), packed_name(ref, PackedLayout.of(model, torch.float32)), 0, made.num_bytes)


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadPoolExecutor]:
    """Threads of which only the first could be started."""

    def fail(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        threads.submit(int).result()
        monkeypatch.setattr(Thread, "start", fail)
        yield threads


def test_one_thread_reads_all_where_no_other_can_be_started(
    job: ReadJob, made: HostCopy, one_thread: ThreadPoolExecutor
) -> None:
    memory = bytearray(job.num_bytes)
    opened, *chunks = _run(job, memory, one_thread)
    assert opened[0] in (OPENED, OPENED_DIRECT)
    assert [number for number, *_ in chunks] == list(range(len(chunk_ranges(job.num_bytes))))
    assert memory == packed_memory(made.packed, made.num_bytes).numpy().tobytes()


def test_a_failure_is_told_once_where_no_other_thread_can_be_started(
    job: ReadJob, one_thread: ThreadPoolExecutor
) -> None:
    """Threads that come after it tell nothing: the lane may be another job's by then."""
    path = Path(os.fsdecode(job.path))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    *_, last = records = _run(job, bytearray(job.num_bytes), one_thread)
    assert last[:2] == (FAILED, INVALID) and [number for number, *_ in records].count(FAILED) == 1


def _run(job: ReadJob, memory: bytearray, threads: ThreadPoolExecutor) -> list[tuple[Any, ...]]:
    """Runs the job on these threads: its records."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    has_begun = Event()
    with ours, theirs:
        submit(threads, _Reads(job, memoryview(memory), theirs).begin, threads, _NUM_THREADS)
        submit(threads, has_begun.set)
        assert has_begun.wait(DEADLINE_S)
        threads.shutdown()  # all that was queued has run
        theirs.shutdown(socket.SHUT_WR)
        return list(RECORD.iter_unpack(ours.makefile("rb").read()))


def test_it_ends_without_a_word_where_its_worker_has_died_while_it_started() -> None:
    memory = os.memfd_create("memory")
    os.ftruncate(memory, mmap.PAGESIZE)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.close()
    command = [sys.executable, "-P", "-m", chunk_process.__name__, "--control", str(theirs.fileno())]
    command += ["--lanes", str(theirs.fileno()), "--memory", str(memory), "--threads", "2"]
    with theirs:
        ended = subprocess.run(
            command, pass_fds=(theirs.fileno(), memory), capture_output=True, text=True, timeout=DEADLINE_S
        )
    os.close(memory)
    assert (ended.returncode, ended.stderr) == (0, "")
