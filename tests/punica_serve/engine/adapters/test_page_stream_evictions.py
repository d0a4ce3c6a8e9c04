"""Adapters that are cancelled or deleted while they go on to the device."""

from threading import Event

import pytest

from loader_harness import gate_reads
from packed_loads import HeldLastChunk, Make, check_pages, settle, state
from punica_serve.engine.adapters.entry import AdapterState
from punica_serve.engine.adapters.packing import PackedAdapter
from punica_serve.protocol import AdapterRef
from punica_serve.store.packed_folder import PackedCache
from waits import DEADLINE_S


def test_an_adapter_that_is_deleted_between_its_chunks_is_served_and_then_leaves(
    make: Make, refs: list[AdapterRef], packed: list[PackedAdapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requests that have it were admitted before."""
    ref, harness, last_chunk = refs[0], make(), HeldLastChunk(monkeypatch)
    harness.loader.acquire(ref)
    assert last_chunk.begun.wait(DEADLINE_S)
    harness.loader.evict(ref.digest)
    last_chunk.release()
    harness.until(lambda: harness.loader.adapters.is_ready(ref.digest))
    check_pages(harness, ref, packed[0])
    harness.loader.release(ref.digest)
    harness.loader.adapters.check_invariants()
    assert not harness.loader.adapters and ref.digest not in harness.host_cache


def test_one_that_is_cancelled_and_deleted_between_its_chunks_keeps_its_pages_until_nobody_writes_them(
    make: Make, refs: list[AdapterRef], packed: list[PackedAdapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    ref, harness, last_chunk = refs[0], make(num_pages=2), HeldLastChunk(monkeypatch)
    harness.loader.acquire(ref)
    assert last_chunk.begun.wait(DEADLINE_S)
    harness.loader.release(ref.digest)
    harness.loader.evict(ref.digest)
    harness.loader.acquire(refs[1])
    harness.loader.poll()
    assert harness.pool.groups["o"].pages.num_free == 0 and not harness.loader.adapters.pages(refs[1].digest)
    last_chunk.release()
    harness.until(lambda: harness.loader.adapters.is_ready(refs[1].digest))
    check_pages(harness, refs[1], packed[1])
    assert ref.digest not in harness.loader.adapters and ref.digest not in harness.host_cache


def test_one_that_is_cancelled_and_deleted_while_its_folder_is_read_leaves_nothing_behind(
    make: Make, refs: list[AdapterRef], cache: PackedCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has pages all the while, and is staged only then, with nobody left to copy it for."""
    gate = Event()
    reads, ref, harness = gate_reads(monkeypatch, gate), refs[0], make(num_pages=2)
    harness.loader.acquire(ref)
    harness.until(lambda: bool(reads) and not harness.loader.adapters.is_copying)
    assert state(harness, ref) is AdapterState.STREAMING
    harness.loader.release(ref.digest)
    harness.loader.evict(ref.digest)
    gate.set()
    harness.until(lambda: ref.digest not in harness.loader.adapters)
    assert harness.pool.groups["o"].pages.num_free == 2 and ref.digest not in harness.host_cache
    settle(harness.loader)
    assert not list(cache.folder.rglob(f"*{ref.digest}*"))
