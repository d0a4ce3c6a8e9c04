"""Loading, using and evicting adapters, driven by hand as the step loop does."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

from engine_fixtures import MakeAdapter, MakeHarness
from loader_harness import LoaderHarness
from pinned import can_be_pinned, is_read_in_place
from punica_serve.adapters.folder import UnverifiedAdapter, begin_load
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters import reader as adapter_reader
from punica_serve.engine.adapters.lora_pool import AdapterPages, LoraPool
from punica_serve.engine.adapters.packing import PackedAdapter
from punica_serve.engine.adapters.reader import AdapterReader
from punica_serve.protocol import AdapterRef
from waits import DEADLINE_S


def test_an_adapter_arrives_and_its_pages_hold_its_weights(
    make_harness: MakeHarness, make_adapter: MakeAdapter
) -> None:
    harness, ref = make_harness(), make_adapter(rank=16)
    assert not harness.loader.adapters.is_ready(ref.digest)
    harness.load(ref)
    pages = harness.loader.adapters.pages(ref.digest)
    copy = harness.host_cache.get(ref.digest)
    assert copy is not None
    for group, numbers in pages.items():
        assert torch.equal(harness.pool.groups[group].a[numbers], copy.packed.groups[group].a)
        assert torch.equal(harness.pool.groups[group].b[numbers], copy.packed.groups[group].b)


def test_unused_adapters_leave_least_recently_used_first(make_harness: MakeHarness, make_adapter: MakeAdapter) -> None:
    harness = make_harness(num_pages=2)
    first, second, third = (make_adapter(seed=seed) for seed in range(3))
    harness.load(first, second)
    for ref in (first, second):
        harness.loader.release(ref.digest)
    harness.load(first)  # used again: second is now the older
    harness.load(third)
    assert set(harness.loader.adapters.resident) == {first.digest, third.digest}


def test_a_pinned_adapter_stays_and_the_next_waits_for_it(make_harness: MakeHarness, make_adapter: MakeAdapter) -> None:
    harness = make_harness(num_pages=1)
    pinned, waiting = make_adapter(seed=1), make_adapter(seed=2)
    harness.load(pinned)
    harness.loader.acquire(waiting)
    harness.until(lambda: waiting.digest in harness.host_cache)
    harness.loader.poll()
    assert harness.loader.adapters.resident == (pinned.digest,)
    harness.loader.release(pinned.digest)
    harness.until(lambda: harness.loader.adapters.is_ready(waiting.digest))
    assert harness.loader.adapters.resident == (waiting.digest,)


def test_nobody_is_evicted_when_all_of_them_were_not_enough(
    make_harness: MakeHarness, make_adapter: MakeAdapter
) -> None:
    harness = make_harness(num_pages=2)
    pinned, unused, large = make_adapter(seed=1), make_adapter(seed=2), make_adapter(rank=16, seed=3)
    harness.load(pinned, unused)
    harness.loader.release(unused.digest)
    harness.loader.acquire(large)
    harness.until(lambda: large.digest in harness.host_cache)
    harness.loader.poll()
    assert unused.digest in harness.loader.adapters.resident


def test_an_adapter_nobody_wants_any_more_takes_no_pages(make_harness: MakeHarness, make_adapter: MakeAdapter) -> None:
    harness, ref = make_harness(), make_adapter()
    harness.loader.acquire(ref)
    harness.loader.release(ref.digest)
    harness.until(lambda: ref.digest not in harness.loader.adapters)
    assert ref.digest in harness.host_cache, "it was read for nothing, but it was read"
    assert harness.pool.groups["o"].pages.num_free == 4


def test_last_used_is_last_to_leave(make_harness: MakeHarness, make_adapter: MakeAdapter) -> None:
    """However early it was acquired."""
    harness = make_harness(num_pages=2)
    early, late, third = (make_adapter(seed=seed) for seed in range(3))
    harness.load(early, late)
    harness.loader.release(late.digest)
    harness.loader.release(early.digest)
    harness.load(third)
    assert set(harness.loader.adapters.resident) == {early.digest, third.digest}


def test_use_alone_changes_nothing_of_what_is_resident(make_harness: MakeHarness, make_adapter: MakeAdapter) -> None:
    """Else every request that ends would report all residents again."""
    harness = make_harness()
    refs = [make_adapter(seed=seed) for seed in range(3)]
    harness.load(*refs)
    before = harness.loader.adapters.resident
    for ref in refs:
        harness.loader.release(ref.digest)
        assert harness.loader.adapters.resident == before
    harness.loader.acquire(refs[1])
    assert harness.loader.adapters.resident == before and len(before) == 3


def test_room_is_what_adapters_in_use_leave(make_harness: MakeHarness, make_adapter: MakeAdapter) -> None:
    harness = make_harness(num_pages=3)
    used, unused, large = make_adapter(rank=16, seed=1), make_adapter(seed=2), make_adapter(rank=16, seed=3)
    harness.load(used, unused)
    harness.loader.release(unused.digest)
    assert not harness.loader.adapters.has_room_for(large)
    assert harness.loader.adapters.has_room_for(unused) and harness.loader.adapters.has_room_for(used)
    harness.loader.release(used.digest)
    assert harness.loader.adapters.has_room_for(large)


def test_the_host_cache_saves_the_second_read(
    make_harness: MakeHarness, make_adapter: MakeAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []

    def load(ref: AdapterRef, *rest: Any) -> UnverifiedAdapter:
        reads.append(ref.digest)
        return begin_load(ref, *rest)

    monkeypatch.setattr(adapter_reader, "begin_load", load)
    harness = make_harness(num_pages=1)
    first, second = make_adapter(seed=1), make_adapter(seed=2)
    for ref in (first, second, first):
        harness.load(ref)
        harness.loader.release(ref.digest)
    assert reads == [first.digest, second.digest]


def test_a_missing_folder_fails_its_adapter_and_frees_what_it_held(
    make_harness: MakeHarness, make_adapter: MakeAdapter
) -> None:
    harness, ref = make_harness(), make_adapter(seed=9)
    shutil.rmtree(ref.uri)
    harness.loader.acquire(ref)
    failures = harness.until(lambda: ref.digest not in harness.loader.adapters)
    (failure,) = failures
    assert failure.digest == ref.digest and "no such folder" in failure.error.message
    harness.loader.release(ref.digest)  # its requests may still let go: nothing happens


def _cut_weights(folder: Path) -> None:
    os.truncate(folder / "adapter_model.safetensors", 3000)


def _no_weights(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (_cut_weights, "its files changed on disk since it was registered"),
        (_no_weights, "adapter_model.safetensors: can't be read: No such file or directory; register it again, or ask"),
        (shutil.rmtree, "can't be read: no such folder, or not readable; register it again, or ask the operator"),
    ],
)
def test_clients_see_what_is_wrong_and_the_log_says_where(
    make_harness: MakeHarness,
    make_adapter: MakeAdapter,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], None],
    told: str,
) -> None:
    harness, ref = make_harness(), make_adapter(seed=9)
    damage(Path(ref.uri))
    for _ in range(3):
        harness.loader.acquire(ref)
    (failure,) = harness.until(lambda: ref.digest not in harness.loader.adapters)
    assert told in failure.error.message and ref.uri not in failure.error.message
    (record,) = caplog.records
    assert record.levelname == "WARNING" and ref.uri in record.getMessage(), "once, for all three requests"


@pytest.mark.parametrize("fails", ["read", "copy"])
def test_one_that_was_deleted_leaves_nothing_behind_when_it_fails(
    make_harness: MakeHarness, make_adapter: MakeAdapter, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    gate, removed = Event(), list[str]()

    def fail(*_: Any) -> UnverifiedAdapter:
        assert gate.wait(DEADLINE_S)
        raise RuntimeError("broken")

    monkeypatch.setattr(AdapterReader, "evict", lambda _, digest: removed.append(digest))
    harness, ref = make_harness(), make_adapter()
    if fails == "read":
        monkeypatch.setattr(adapter_reader, "begin_load", fail)
    else:
        monkeypatch.setattr(LoraPool, "write", fail)
    harness.loader.acquire(ref)
    if fails == "copy":
        harness.until(lambda: bool(harness.loader.adapters.pages(ref.digest)))
    harness.loader.evict(ref.digest)
    gate.set()
    (failure,) = harness.until(lambda: not harness.loader.adapters)
    assert failure.digest == ref.digest
    assert ref.digest not in harness.host_cache and harness.host_cache.used_bytes == 0
    assert removed == [ref.digest], "its packed form too"


class _FakeEvent:
    def __init__(self) -> None:
        self.has_passed = False

    def query(self) -> bool:
        return self.has_passed


def test_pages_are_written_after_the_steps_that_may_still_read_them(
    make_harness: MakeHarness, make_adapter: MakeAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited_for: list[tuple[Any, ...]] = []
    write = LoraPool.write

    def spy(pool: LoraPool, pages: AdapterPages, packed: PackedAdapter, after: tuple[Any, ...], arrival: None) -> float:
        waited_for.append(after)
        return write(pool, pages, packed, (), arrival)

    monkeypatch.setattr(LoraPool, "write", spy)
    harness = make_harness(num_pages=1)
    first, second, third, fourth = (make_adapter(seed=seed) for seed in range(4))
    harness.load(first)
    ends = [_FakeEvent(), _FakeEvent(), _FakeEvent()]
    for end, ref, following in zip(ends, (first, second, third), (second, third, fourth), strict=True):
        harness.newest_end = end
        harness.loader.release(ref.digest)
        harness.newest_end = _FakeEvent()  # a later step, which does not have the adapter
        if following is fourth:
            ends[0].has_passed = ends[1].has_passed = True
        harness.load(following)
    assert waited_for == [(), (ends[0],), (ends[0], ends[1]), (ends[2],)]


@pytest.mark.gpu
def test_a_gpus_pages_are_written_from_pinned_memory_after_the_fence(
    tiny_model: ModelConfig, make_adapter: MakeAdapter
) -> None:
    """A long kernel stands for a step that still reads the evicted adapter's pages."""
    gpu = torch.device("cuda", 0)
    harness = LoaderHarness(tiny_model, num_pages=1, device=gpu)
    first, second = make_adapter(seed=1), make_adapter(seed=2)
    harness.load(first)
    pools = {group: harness.pool.groups[group] for group in harness.loader.adapters.pages(first.digest)}
    before = {group: pool.a.clone() for group, pool in pools.items()}
    torch.cuda._sleep(1_000_000_000)
    read = {group: pool.a.clone() for group, pool in pools.items()}
    harness.newest_end = torch.cuda.Event()
    harness.newest_end.record()
    harness.loader.release(first.digest)
    harness.load(second)
    copy = harness.host_cache.get(second.digest)
    assert copy is not None
    for group, pool in pools.items():
        assert torch.equal(read[group], before[group]), "the step read the old adapter"
        assert torch.equal(pool.a.cpu(), copy.packed.groups[group].a)
        assert torch.equal(pool.b.cpu(), copy.packed.groups[group].b)
        assert is_read_in_place(copy.packed.groups[group].a)
    harness.loader.close()
    harness.host_cache.close()
    assert can_be_pinned(harness.host_cache._memory.bytes)
