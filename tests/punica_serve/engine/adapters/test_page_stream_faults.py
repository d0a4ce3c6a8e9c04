"""Streams of files that are damaged, cut short, gone or late: no wrong byte is used, and no page is lost."""

import os
import shutil
import time

import pytest

from packed_loads import HeldLastChunk, Make, check_pages, copied, file_of
from punica_serve.engine.adapters import host_load, packed_store
from punica_serve.engine.adapters.packing import PackedAdapter
from punica_serve.protocol import AdapterRef
from punica_serve.store.packed_folder import PackedCache
from waits import DEADLINE_S


@pytest.mark.parametrize("place", [0, 60, 4096, -5000, -1])
def test_a_damaged_chunk_is_never_used_and_the_adapter_is_made_again(
    make: Make, cache: PackedCache, refs: list[AdapterRef], packed: list[PackedAdapter], copies: list[str], place: int
) -> None:
    ref, file = refs[0], file_of(cache, refs[0])
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    harness = make()
    harness.load(ref)
    check_pages(harness, ref, packed[0])
    assert copies == ["copy"], "from the folder"
    pages = harness.loader.adapters.pages(ref.digest)
    assert sum(len(numbers) for numbers in pages.values()) == 8, "to the pages that it had"


@pytest.mark.parametrize("num_bytes", [0, 100, 4096, 20_000])
def test_a_file_that_is_cut_short_is_made_again(
    make: Make,
    cache: PackedCache,
    refs: list[AdapterRef],
    packed: list[PackedAdapter],
    copies: list[str],
    num_bytes: int,
) -> None:
    os.truncate(file_of(cache, refs[0]), num_bytes)
    harness = make()
    harness.load(refs[0])
    check_pages(harness, refs[0], packed[0])
    assert copies == ["copy"]


def test_one_without_a_good_packed_file_and_without_a_folder_fails_and_frees_its_pages(
    make: Make, cache: PackedCache, refs: list[AdapterRef], packed: list[PackedAdapter]
) -> None:
    ref, harness = refs[0], make(num_pages=2)
    os.truncate(file_of(cache, ref), 20_000)
    shutil.rmtree(ref.uri)
    harness.loader.acquire(ref)
    (failure,) = harness.until(lambda: ref.digest not in harness.loader.adapters)
    assert failure.digest == ref.digest and "no such folder" in failure.error.message
    harness.load(refs[1])
    check_pages(harness, refs[1], packed[1])


def test_a_chunk_that_is_not_read_in_time_fails_its_requests_alone_and_never_reaches_the_pages_of_another(
    make: Make, refs: list[AdapterRef], packed: list[PackedAdapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_load, "_READ_TIMEOUT_S", 0.03)
    ref, harness, last_chunk = refs[0], make(num_pages=2), HeldLastChunk(monkeypatch)
    harness.loader.acquire(ref)
    assert last_chunk.others_done.wait(DEADLINE_S)
    harness.loader.poll()  # notices that it is read
    time.sleep(0.05)
    (failure,) = harness.loader.poll()
    assert failure.digest == ref.digest and not failure.permanent and "does not answer" in failure.error.message
    assert ref.digest not in harness.loader.adapters and harness.pool.groups["o"].pages.num_free == 2
    copy = harness.host_cache.make(
        refs[1].digest, packed[1].num_bytes + (1 << 16), lambda memory: copied(memory, packed[1], refs[1], harness)
    )
    harness.host_cache.release(copy)
    harness.load(refs[1])
    last_chunk.release()
    harness.until(lambda: ref.digest in harness.host_cache)
    check_pages(harness, refs[1], packed[1])
    harness.loader.release(refs[1].digest)
    harness.load(ref)
    check_pages(harness, ref, packed[0])


def test_a_load_that_can_not_go_on_ends_all_that_it_has_begun(
    make: Make, refs: list[AdapterRef], packed: list[PackedAdapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads read chunks meanwhile, into memory that is free afterwards."""

    def fail(*_: object) -> PackedAdapter:
        raise RuntimeError("no memory for tables")

    harness = make()
    with monkeypatch.context() as patch:
        patch.setattr(packed_store, "packed_views", fail)
        harness.loader.acquire(refs[0])
        (failure,) = harness.until(lambda: not harness.loader.adapters)
    assert failure.digest == refs[0].digest and harness.host_cache.used_bytes == 0
    harness.load(refs[0])
    check_pages(harness, refs[0], packed[0])
