"""Adapters that go on to the device while they are read: nothing uses them before all of their bytes were verified."""

from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from loader_harness import gate_reads
from packed_loads import HeldLastChunk, Make, check_pages, state
from punica_serve.engine.adapters import page_stream
from punica_serve.engine.adapters.chunk_job import ChunkJob
from punica_serve.engine.adapters.copy_batch import CopyBatch
from punica_serve.engine.adapters.entry import AdapterState
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.engine.adapters.packing import PackedAdapter
from punica_serve.engine.adapters.page_stream import PageStream
from punica_serve.protocol import AdapterRef
from waits import DEADLINE_S


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_what_is_read_from_a_packed_file_is_on_the_device_by_then(
    make: Make, refs: list[AdapterRef], packed: list[PackedAdapter], copies: list[str], device: str
) -> None:
    harness = make(num_pages=2 * len(refs), device=device)
    harness.load(*refs)
    for ref, adapter in zip(refs, packed, strict=True):
        check_pages(harness, ref, adapter)
        assert ref.digest in harness.host_cache
    assert not copies and set(harness.loader.adapters.resident) == {ref.digest for ref in refs}


def test_a_chunk_is_copied_while_others_are_read_and_nothing_is_ready_before_the_last(
    make: Make, refs: list[AdapterRef], packed: list[PackedAdapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, ref, last_chunk = make(), refs[0], HeldLastChunk(monkeypatch)
    harness.loader.acquire(ref)
    assert last_chunk.begun.wait(DEADLINE_S)
    name, numbers = next(iter(harness.loader.adapters.pages(ref.digest).items()))
    assert last_chunk.others_done.wait(DEADLINE_S)
    assert torch.equal(harness.pool.groups[name].a[numbers], packed[0].groups[name].a), "all that lies in other chunks"
    harness.loader.poll()
    assert state(harness, ref) is AdapterState.STREAMING and harness.loader.adapters.is_copying
    assert not harness.loader.adapters.is_ready(ref.digest) and not harness.loader.arrivals.can_join(ref.digest)
    assert harness.loader.arrivals.under_way(ref.digest) is None
    last_chunk.release()
    harness.until(lambda: harness.loader.adapters.is_ready(ref.digest))
    check_pages(harness, ref, packed[0])


def test_chunks_that_come_while_others_are_copied_are_one_copy(
    make: Make, refs: list[AdapterRef], packed: list[PackedAdapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call gives the GIL up, and has to get it back from the step loop."""
    stretches: list[int] = []
    prepare, copy, has_ended = LoraPool.begin_parts, LoraPool.write_part, Event()
    num_bytes, end = packed[0].num_bytes, ChunkJob._end

    def end_job(job: ChunkJob) -> None:
        end(job)
        has_ended.set()

    def prepare_late(*arguments: Any) -> CopyBatch:
        assert has_ended.wait(DEADLINE_S), "the threads have read all chunks, and said so"
        return prepare(*arguments)

    def write(pool: LoraPool, batch: CopyBatch, first: int, last: int) -> None:
        stretches.append(last - first)
        copy(pool, batch, first, last)

    monkeypatch.setattr(ChunkJob, "_end", end_job)
    monkeypatch.setattr(LoraPool, "begin_parts", prepare_late)
    monkeypatch.setattr(LoraPool, "write_part", write)
    harness = make()
    harness.load(refs[0])
    check_pages(harness, refs[0], packed[0])
    assert stretches == [num_bytes]


def test_without_free_pages_it_is_read_to_the_host_and_copied_later(
    make: Make, refs: list[AdapterRef], packed: list[PackedAdapter], copies: list[str]
) -> None:
    harness = make(num_pages=2)
    harness.load(refs[0])
    harness.loader.acquire(refs[1])
    harness.until(lambda: refs[1].digest in harness.host_cache)
    harness.loader.poll()
    assert not harness.loader.adapters.is_copying and not copies
    harness.loader.release(refs[0].digest)
    harness.until(lambda: harness.loader.adapters.is_ready(refs[1].digest))
    check_pages(harness, refs[1], packed[1])
    assert copies == ["copy"]


def test_steps_are_not_delayed_for_one_that_is_hashed_and_packed(
    make: Make, refs: list[AdapterRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Event()
    reads = gate_reads(monkeypatch, gate)
    harness = make()
    harness.loader.acquire(refs[0])
    harness.until(lambda: bool(reads) and not harness.loader.adapters.is_copying)
    assert state(harness, refs[0]) is AdapterState.STREAMING
    gate.set()
    harness.until(lambda: harness.loader.adapters.is_ready(refs[0].digest))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_links_rate_is_learnt_from_chunks(
    make: Make, refs: list[AdapterRef], packed: list[PackedAdapter], copies: list[str], device: str
) -> None:
    """Without a whole copy from host memory, too, steps know how long they would wait for layers."""
    harness = make(num_pages=2 * len(refs), device=device)
    harness.load(refs[0])
    assert min(harness.loader._writer._forecast._rates) > 0 and not copies


def test_a_gpus_chunk_takes_the_time_since_the_one_before_at_most() -> None:
    def chunk(num_bytes: int, end_ms: float) -> page_stream._ChunkCopy:
        end: Any = SimpleNamespace(ms=end_ms, elapsed_time=lambda later: later.ms - end_ms)
        return page_stream._ChunkCopy(num_bytes, 9.0, end)

    stream = PageStream(*[SimpleNamespace()] * 6)  # type: ignore[arg-type]
    assert stream.fastest_copy() == (0, 0.0)
    stream._copies = [chunk(10, 1.0), chunk(10, 5.0), chunk(8, 7.0), chunk(10, 10.0)]
    assert stream.fastest_copy() == pytest.approx((8, 0.002))


def test_a_gpus_chunks_are_to_come_until_their_copies_have_ended() -> None:
    ended: set[int] = set()

    def chunk(number: int, num_bytes: int) -> page_stream._ChunkCopy:
        end: Any = SimpleNamespace(query=lambda: number in ended)
        return page_stream._ChunkCopy(num_bytes, 9.0, end)

    stream = PageStream(*[SimpleNamespace()] * 6)  # type: ignore[arg-type]
    stream._copies = [chunk(0, 10), chunk(1, 20), chunk(2, 30)]
    assert stream.bytes_to_come() == 60
    ended |= {0, 1}
    assert stream.bytes_to_come() == 30
    ended.add(2)
    assert stream.bytes_to_come() == 0
