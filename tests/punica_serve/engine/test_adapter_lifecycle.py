"""Prefetching, pinning and evicting adapters, driven as the step loop does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from engine_fixtures import MakeAdapter, MakeHarness
from loader_harness import LoaderHarness
from punica_serve.engine.adapters import host_loader
from punica_serve.engine.adapters.entry import AdapterState
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.protocol import AdapterRef


def _is_warm(harness: LoaderHarness, *refs: AdapterRef) -> Callable[[], bool]:
    return lambda: all(harness.loader.adapters.is_ready(ref.digest) for ref in refs)


def _rests(harness: LoaderHarness) -> Callable[[], bool]:
    """Nothing is under way."""
    return lambda: (
        harness.loader._host.is_idle
        and not harness.loader._prefetched
        and not harness.loader.adapters.in_state(AdapterState.COPYING)
    )


def test_a_prefetched_adapter_is_loaded_to_host_and_device(
    make_harness: MakeHarness, make_adapter: MakeAdapter
) -> None:
    harness, refs = make_harness(num_pages=4), [make_adapter(seed=seed) for seed in range(3)]
    for ref in refs:
        harness.loader.prefetch(ref)
    harness.until(_is_warm(harness, *refs))
    assert sorted(harness.host_cache.digests) == sorted(ref.digest for ref in refs)
    assert not harness.loader.adapters.refcounts
    harness.loader.acquire(refs[0])
    assert harness.loader.adapters.is_ready(refs[0].digest), "at once"


def test_one_that_is_on_the_host_already_goes_on_to_the_device(
    make_harness: MakeHarness, make_adapter: MakeAdapter
) -> None:
    harness, ref = make_harness(), make_adapter()
    harness.loader.prefetch_to_host(ref)
    harness.until(_rests(harness))
    assert harness.loader.adapters.resident == ()
    harness.loader.prefetch(ref)
    harness.until(_is_warm(harness, ref))


def test_one_that_is_on_the_device_comes_to_the_host_again(
    make_harness: MakeHarness, make_adapter: MakeAdapter
) -> None:
    harness, ref = make_harness(), make_adapter()
    harness.load(ref)
    harness.host_cache.evict(ref.digest)
    harness.loader.prefetch(ref, pin=True)
    harness.until(lambda: ref.digest in harness.host_cache)
    harness.until(_rests(harness))
    assert harness.loader.adapters.is_ready(ref.digest)


def test_a_prefetch_evicts_unused_adapters_only(make_harness: MakeHarness, make_adapter: MakeAdapter) -> None:
    harness = make_harness(num_pages=3)
    used, pinned, unused, first, second = (make_adapter(seed=seed) for seed in range(5))
    harness.loader.prefetch(pinned, pin=True)
    harness.until(_is_warm(harness, pinned))
    harness.load(used, unused)
    harness.loader.release(unused.digest)
    harness.loader.prefetch(first)
    harness.until(_is_warm(harness, used, pinned, first))
    harness.loader.prefetch(second, pin=True)
    harness.until(_is_warm(harness, used, pinned, second))
    harness.loader.prefetch(first)
    harness.until(_rests(harness))
    assert not harness.loader.adapters.is_ready(first.digest), "no room: all others are used or pinned"
    assert first.digest in harness.host_cache


def test_a_pinned_adapter_leaves_the_device_last_and_the_host_never(
    make_harness: MakeHarness, make_adapter: MakeAdapter
) -> None:
    harness = make_harness(num_pages=2)
    pinned, unused, third, large = (
        *(make_adapter(seed=seed) for seed in range(3)),
        make_adapter(rank=16, seed=3),
    )
    harness.loader.prefetch(pinned, pin=True)
    harness.until(_is_warm(harness, pinned))
    harness.load(unused)
    harness.loader.release(unused.digest)
    harness.load(third)
    assert set(harness.loader.adapters.resident) == {pinned.digest, third.digest}, "though it is the longest unused"
    harness.loader.release(third.digest)
    harness.load(large)
    assert harness.loader.adapters.resident == (large.digest,)
    assert pinned.digest in harness.host_cache
    harness.loader.prefetch(pinned, pin=False)
    assert not harness.host_cache.is_pinned(pinned.digest)


def test_one_prefetched_adapter_is_copied_at_a_time(
    make_harness: MakeHarness, make_adapter: MakeAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, refs = make_harness(num_pages=8), [make_adapter(seed=seed) for seed in range(5)]
    most: list[int] = []
    write = LoraPool.write

    def spy(pool: LoraPool, *rest: Any) -> float:
        most.append(len(harness.loader.adapters.in_state(AdapterState.COPYING)))
        return write(pool, *rest)

    monkeypatch.setattr(LoraPool, "write", spy)
    for ref in refs:
        harness.loader.prefetch(ref)
    assert not harness.loader.adapters.is_copying, "no step waits for them"
    harness.until(_is_warm(harness, *refs))
    assert max(most) <= 1 and len(most) == 5


def test_a_failed_prefetch_is_only_logged(
    make_harness: MakeHarness,
    make_adapter: MakeAdapter,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = make_harness(host_bytes=1 << 16)
    ref, large = make_adapter(seed=9), replace(make_adapter(), ranks={"o_proj": 128, "down_proj": 128})
    (Path(ref.uri) / "adapter_model.safetensors").unlink()
    harness.loader.prefetch(ref)
    assert harness.until(_rests(harness)) == []
    assert f"adapter {ref.digest} can't be prefetched" in caplog.text and "adapter_model.safetensors" in caplog.text
    harness.loader.prefetch(large, pin=True)
    assert f"adapter {large.digest} is not pinned" in caplog.text
    monkeypatch.setattr(host_loader, "_MAX_QUEUED", 0)
    harness.loader.prefetch(ref)
    assert "too many prefetches are queued" in caplog.text


def test_an_evicted_adapter_leaves_device_and_host(make_harness: MakeHarness, make_adapter: MakeAdapter) -> None:
    harness, ref = make_harness(), make_adapter()
    harness.loader.prefetch(ref, pin=True)
    harness.until(_is_warm(harness, ref))
    harness.loader.evict(ref.digest)
    assert harness.loader.adapters.resident == () and harness.pool.groups["o"].pages.num_free == 4
    assert harness.host_cache.used_bytes == 0 and not harness.host_cache.is_pinned(ref.digest)
    harness.loader.evict(ref.digest)
    harness.loader.evict("never seen")


def test_but_only_after_its_last_user(make_harness: MakeHarness, make_adapter: MakeAdapter) -> None:
    harness, ref = make_harness(), make_adapter()
    harness.load(ref, ref)
    harness.loader.evict(ref.digest)
    harness.loader.release(ref.digest)
    assert harness.loader.adapters.is_ready(ref.digest)
    harness.loader.acquire(ref)
    harness.loader.release(ref.digest)
    assert harness.loader.adapters.is_ready(ref.digest), "one uses it still"
    harness.newest_end = object()
    harness.loader.release(ref.digest)
    assert harness.loader.adapters.resident == () and harness.host_cache.used_bytes == 0
    assert harness.loader._writer._fences == [harness.newest_end], "a step that still runs may read its pages"
    harness.loader._writer._fences.clear()


def test_one_that_is_on_its_way_goes_when_it_has_come(make_harness: MakeHarness, make_adapter: MakeAdapter) -> None:
    harness, (first, second, third) = make_harness(), (make_adapter(seed=seed) for seed in range(3))
    harness.loader.acquire(first)  # nobody uses it, but a thread reads it
    harness.loader.release(first.digest)
    harness.loader.prefetch(second)
    harness.loader.acquire(third)
    for ref in (first, second, third):
        harness.loader.evict(ref.digest)
    harness.until(lambda: harness.loader.adapters.is_ready(third.digest) and harness.loader._host.is_idle)
    harness.loader.release(third.digest)
    assert not harness.loader.adapters and harness.host_cache.used_bytes == 0


def test_one_that_is_being_copied_goes_after_the_copy(
    make_harness: MakeHarness, make_adapter: MakeAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, ref = make_harness(), make_adapter()
    harness.loader.acquire(ref)
    harness.until(lambda: harness.loader.adapters[ref.digest].state is AdapterState.COPYING)
    harness.loader.release(ref.digest)
    harness.loader.evict(ref.digest)
    assert ref.digest in harness.loader.adapters, "a thread may be writing its pages"
    harness.until(lambda: not harness.loader.adapters)
    assert harness.host_cache.used_bytes == 0 and harness.pool.groups["o"].pages.num_free == 4


def test_a_request_after_an_eviction_brings_it_again(make_harness: MakeHarness, make_adapter: MakeAdapter) -> None:
    harness, ref = make_harness(), make_adapter()
    harness.load(ref)
    harness.loader.evict(ref.digest)
    harness.loader.release(ref.digest)
    harness.load(ref)
    harness.loader.release(ref.digest)
    assert harness.loader.adapters.is_ready(ref.digest), "an eviction is no ban"


def test_prefetching_an_adapter_in_use_cancels_its_eviction(
    make_harness: MakeHarness, make_adapter: MakeAdapter
) -> None:
    harness, ref = make_harness(), make_adapter()
    harness.load(ref)
    harness.loader.evict(ref.digest)
    harness.loader.prefetch(ref)
    harness.loader.release(ref.digest)
    assert harness.loader.adapters.is_ready(ref.digest)
