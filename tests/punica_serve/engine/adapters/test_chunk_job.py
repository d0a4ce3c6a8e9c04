"""The reads of one packed file: of some chunks or all, on one thread or several, to their end or until a stop."""

import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters import chunk_job
from punica_serve.engine.adapters.chunk_job import FAILED, INVALID, OPENED, OPENED_DIRECT, RECORD, ChunkJob, submit
from punica_serve.engine.adapters.host_cache import HostCopy
from punica_serve.engine.adapters.packed_chunk import Chunk, read_checked
from punica_serve.engine.adapters.packed_file import PackedLayout, packed_name
from punica_serve.engine.adapters.packed_header import PackedName, chunk_ranges
from punica_serve.engine.adapters.packing import packed_memory
from punica_serve.engine.adapters.range_reader import RangeReader
from punica_serve.protocol import AdapterRef
from waits import DEADLINE_S

_NUM_THREADS = 4


@dataclass
class _Lane:
    """A packed file, the memory that it is read into, and both ends of a lane."""

    path: Path
    name: PackedName
    memory: bytearray
    content: bytes
    num_ends: int = 0
    ours: socket.socket = field(init=False)
    theirs: socket.socket = field(init=False)

    def __post_init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()

    def job(self, **options: Any) -> ChunkJob:
        return ChunkJob(self.path, self.name, memoryview(self.memory), self.theirs, on_end=self._end, **options)

    def _end(self) -> None:
        self.num_ends += 1
        self.theirs.close()

    def records(self) -> list[tuple[Any, ...]]:
        """All of them; waits for the end."""
        return list(RECORD.iter_unpack(self.ours.makefile("rb").read()))


@pytest.fixture
def lane(folder: Path, model: ModelConfig, ref: AdapterRef, made: HostCopy) -> Iterator[_Lane]:
    (path,) = (folder / "packed" / ref.digest).iterdir()
    content = packed_memory(made.packed, made.num_bytes).numpy().tobytes()
    lane = _Lane(path, packed_name(ref, PackedLayout.of(model, torch.float32)), bytearray(made.num_bytes), content)
    yield lane
    lane.ours.close()
    lane.theirs.close()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        yield threads


@pytest.fixture
def one_thread(threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> ThreadPoolExecutor:
    """Threads of which only the first could be started."""

    def fail(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    threads.submit(int).result()
    monkeypatch.setattr(Thread, "start", fail)
    return threads


@pytest.fixture(params=["threads", "one_thread"])
def any_threads(request: pytest.FixtureRequest) -> ThreadPoolExecutor:
    threads = request.getfixturevalue(request.param)
    assert isinstance(threads, ThreadPoolExecutor)
    return threads


def test_all_chunks_are_read_and_told(lane: _Lane, any_threads: ThreadPoolExecutor) -> None:
    submit(any_threads, lane.job().begin, any_threads, _NUM_THREADS)
    opened, *chunks = lane.records()
    assert opened[0] in (OPENED, OPENED_DIRECT)
    assert sorted(number for number, *_ in chunks) == list(range(len(chunk_ranges(len(lane.memory)))))
    assert lane.memory == lane.content and lane.num_ends == 1


def test_some_chunks_are_read_alone(lane: _Lane, threads: ThreadPoolExecutor) -> None:
    submit(threads, lane.job(numbers=[1, 3]).begin, threads, _NUM_THREADS)
    _, *chunks = lane.records()
    assert sorted(number for number, *_ in chunks) == [1, 3]
    for number, place in enumerate(chunk_ranges(len(lane.memory))):
        read = lane.memory[place.start : place.stop]
        assert read == (lane.content[place.start : place.stop] if number in (1, 3) else bytes(len(place)))


def test_a_failure_is_told_once_and_last(lane: _Lane, any_threads: ThreadPoolExecutor) -> None:
    """Threads that come after it tell nothing: the lane may be another job's by then."""
    content = bytearray(lane.path.read_bytes())
    content[-1] ^= 1
    lane.path.write_bytes(content)
    submit(any_threads, lane.job().begin, any_threads, _NUM_THREADS)
    *others, last = lane.records()
    assert last[:2] == (FAILED, INVALID) and FAILED not in [number for number, *_ in others] and lane.num_ends == 1


def test_a_job_that_is_stopped_before_it_begins_reads_nothing(lane: _Lane, threads: ThreadPoolExecutor) -> None:
    job = lane.job()
    job.stop()
    job.begin(threads, _NUM_THREADS)
    job.stop()
    assert not lane.records() and not any(lane.memory) and lane.num_ends == 1


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[int], Event, Callable[[], None]]]:
    """Holds each read: the chunks' starts, an event once one is held, and what lets them go."""
    starts, is_begun, go_on = list[int](), Event(), Event()

    def read(file: RangeReader, chunk: Chunk, *piece: Any) -> float:
        starts.append(chunk.place.start)
        is_begun.set()
        assert go_on.wait(DEADLINE_S)
        return read_checked(file, chunk, *piece)

    monkeypatch.setattr(chunk_job, "read_checked", read)
    yield starts, is_begun, go_on.set
    go_on.set()


def test_a_stop_lets_chunks_that_were_begun_end(
    lane: _Lane, one_thread: ThreadPoolExecutor, begun: tuple[list[int], Event, Callable[[], None]]
) -> None:
    starts, is_begun, go_on = begun
    job = lane.job()
    submit(one_thread, job.begin, one_thread, _NUM_THREADS)
    assert is_begun.wait(DEADLINE_S)
    job.stop()
    assert lane.num_ends == 0, "a thread still writes"
    go_on()
    _, *chunks = lane.records()
    assert [number for number, *_ in chunks] == [0] and starts == [0] and lane.num_ends == 1


def test_a_worker_that_is_gone_costs_the_threads_nothing(
    lane: _Lane, threads: ThreadPoolExecutor, begun: tuple[list[int], Event, Callable[[], None]]
) -> None:
    _, is_begun, go_on = begun
    open_files = len(os.listdir("/proc/self/fd"))
    submit(threads, lane.job().begin, threads, _NUM_THREADS)
    assert is_begun.wait(DEADLINE_S)
    lane.ours.close()
    go_on()
    threads.shutdown()
    assert lane.num_ends == 1 and len(os.listdir("/proc/self/fd")) <= open_files - 2
