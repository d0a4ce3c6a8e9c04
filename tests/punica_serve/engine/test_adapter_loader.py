"""The loader's life of an adapter, driven by hand as the step loop drives it."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest
import torch

from punica_serve.adapters.adapter import Adapter
from punica_serve.adapters.folder import load_adapter
from punica_serve.engine import adapter_loader
from punica_serve.engine.adapter_loader import AdapterFailure, AdapterLoader
from punica_serve.engine.host_cache import HostCache
from punica_serve.engine.lora_pool import LoraPool
from punica_serve.model_config import ModelConfig
from punica_serve.protocol import AdapterRef

DEADLINE_S = 10.0
MakeAdapter = Callable[..., AdapterRef]


class _Harness:
    def __init__(self, model: ModelConfig, num_pages: int, host_bytes: int = 1 << 24) -> None:
        self.progress = Event()
        self.pool = LoraPool(model, num_pages=num_pages, dtype=torch.float32, device=torch.device("cpu"))
        self.host_cache = HostCache(host_bytes)
        self.loader = AdapterLoader(self.pool, self.host_cache, model, torch.float32, self.progress.set)

    def until(self, condition: Callable[[], bool]) -> list[AdapterFailure]:
        failures, deadline = self.loader.poll(), time.monotonic() + DEADLINE_S
        while not condition():
            assert self.progress.wait(deadline - time.monotonic()), "the loader makes no progress"
            self.progress.clear()
            failures += self.loader.poll()
            self.loader.check_invariants()
        return failures

    def bring(self, *refs: AdapterRef) -> None:
        for ref in refs:
            self.loader.acquire(ref)
        self.until(lambda: all(self.loader.is_ready(ref.digest) for ref in refs))


@pytest.fixture
def make_harness(tiny_model: ModelConfig) -> Iterator[Callable[..., _Harness]]:
    made: list[_Harness] = []

    def make(num_pages: int = 4, **settings: int) -> _Harness:
        made.append(_Harness(tiny_model, num_pages, **settings))
        return made[-1]

    yield make
    for harness in made:
        harness.loader.check_invariants()
        harness.loader.close()


def test_an_adapter_arrives_and_its_pages_hold_its_weights(
    make_harness: Callable[..., _Harness], make_adapter: MakeAdapter
) -> None:
    harness, ref = make_harness(), make_adapter(rank=16)
    assert not harness.loader.is_ready(ref.digest)
    harness.bring(ref)
    pages = harness.loader.pages(ref.digest)
    packed = harness.host_cache.get(ref.digest)
    assert packed is not None
    for group, numbers in pages.items():
        assert torch.equal(harness.pool.groups[group].a[numbers], packed.groups[group].a)
        assert torch.equal(harness.pool.groups[group].b[numbers], packed.groups[group].b)


def test_unused_adapters_leave_least_recently_used_first(
    make_harness: Callable[..., _Harness], make_adapter: MakeAdapter
) -> None:
    harness = make_harness(num_pages=2)
    first, second, third = (make_adapter(seed=seed) for seed in range(3))
    harness.bring(first, second)
    for ref in (first, second):
        harness.loader.release(ref.digest)
    harness.bring(first)  # used again: second is now the older
    harness.bring(third)
    assert set(harness.loader.resident) == {first.digest, third.digest}


def test_a_pinned_adapter_stays_and_the_next_waits_for_it(
    make_harness: Callable[..., _Harness], make_adapter: MakeAdapter
) -> None:
    harness = make_harness(num_pages=1)
    pinned, waiting = make_adapter(seed=1), make_adapter(seed=2)
    harness.bring(pinned)
    harness.loader.acquire(waiting)
    harness.until(lambda: harness.host_cache.get(waiting.digest) is not None)
    harness.loader.poll()
    assert harness.loader.resident == (pinned.digest,)
    harness.loader.release(pinned.digest)
    harness.until(lambda: harness.loader.is_ready(waiting.digest))
    assert harness.loader.resident == (waiting.digest,)


def test_nobody_is_evicted_when_all_of_them_were_not_enough(
    make_harness: Callable[..., _Harness], make_adapter: MakeAdapter
) -> None:
    harness = make_harness(num_pages=2)
    pinned, unused, large = make_adapter(seed=1), make_adapter(seed=2), make_adapter(rank=16, seed=3)
    harness.bring(pinned, unused)
    harness.loader.release(unused.digest)
    harness.loader.acquire(large)
    harness.until(lambda: harness.host_cache.get(large.digest) is not None)
    harness.loader.poll()
    assert unused.digest in harness.loader.resident


def test_an_adapter_nobody_wants_any_more_takes_no_pages(
    make_harness: Callable[..., _Harness], make_adapter: MakeAdapter
) -> None:
    harness, ref = make_harness(), make_adapter()
    harness.loader.acquire(ref)
    harness.loader.release(ref.digest)
    harness.until(lambda: ref.digest not in harness.loader._entries)
    assert harness.host_cache.get(ref.digest) is not None, "it was read for nothing, but it was read"
    assert harness.pool.groups["o"].pages.num_free == 4


def test_last_used_is_last_to_leave(make_harness: Callable[..., _Harness], make_adapter: MakeAdapter) -> None:
    """However early it was acquired."""
    harness = make_harness(num_pages=2)
    early, late, third = (make_adapter(seed=seed) for seed in range(3))
    harness.bring(early, late)
    harness.loader.release(late.digest)
    harness.loader.release(early.digest)
    harness.bring(third)
    assert set(harness.loader.resident) == {early.digest, third.digest}


def test_use_alone_changes_nothing_of_what_is_resident(
    make_harness: Callable[..., _Harness], make_adapter: MakeAdapter
) -> None:
    """Else every request that ends would report all residents again."""
    harness = make_harness()
    refs = [make_adapter(seed=seed) for seed in range(3)]
    harness.bring(*refs)
    before = harness.loader.resident
    for ref in refs:
        harness.loader.release(ref.digest)
        assert harness.loader.resident == before
    harness.loader.acquire(refs[1])
    assert harness.loader.resident == before and len(before) == 3


def test_room_is_what_adapters_in_use_leave(make_harness: Callable[..., _Harness], make_adapter: MakeAdapter) -> None:
    harness = make_harness(num_pages=3)
    used, unused, large = make_adapter(rank=16, seed=1), make_adapter(seed=2), make_adapter(rank=16, seed=3)
    harness.bring(used, unused)
    harness.loader.release(unused.digest)
    assert not harness.loader.has_room_for(large)
    assert harness.loader.has_room_for(unused) and harness.loader.has_room_for(used)
    harness.loader.release(used.digest)
    assert harness.loader.has_room_for(large)


def test_the_host_cache_saves_the_second_read(
    make_harness: Callable[..., _Harness], make_adapter: MakeAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []

    def load(ref: AdapterRef, model: ModelConfig) -> Adapter:
        reads.append(ref.digest)
        return load_adapter(ref, model)

    monkeypatch.setattr(adapter_loader, "load_adapter", load)
    harness = make_harness(num_pages=1)
    first, second = make_adapter(seed=1), make_adapter(seed=2)
    for ref in (first, second, first):
        harness.bring(ref)
        harness.loader.release(ref.digest)
    assert reads == [first.digest, second.digest]


def test_a_missing_folder_fails_its_adapter_and_frees_what_it_held(
    make_harness: Callable[..., _Harness], make_adapter: MakeAdapter
) -> None:
    harness, ref = make_harness(), make_adapter(seed=9)
    (Path(ref.uri) / "adapter_model.safetensors").unlink()
    harness.loader.acquire(ref)
    failures = harness.until(lambda: ref.digest not in harness.loader._entries)
    (failure,) = failures
    assert failure.digest == ref.digest and "adapter_model.safetensors" in failure.error.message
    harness.loader.release(ref.digest)  # its requests may still let go: nothing happens
