"""Prefetches to host memory, hints of them, and requests for what was prefetched."""

import time
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

from engine_fixtures import MakeAdapter, MakeHarness
from loader_harness import gate_reads
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters.load_trace import LoadPhase
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.engine.adapters.packing import packed_num_bytes
from waits import DEADLINE_S


def test_one_that_is_on_the_host_has_its_pages_at_once(make_harness: MakeHarness, make_adapter: MakeAdapter) -> None:
    harness, ref = make_harness(), make_adapter()
    harness.loader.prefetch_to_host(ref)
    harness.until(lambda: ref.digest in harness.host_cache and harness.loader._host.is_idle)
    assert harness.loader.adapters.resident == (), "a prefetch takes no pages"
    harness.loader.acquire(ref)
    assert harness.loader.adapters.pages(ref.digest), "without a poll"
    harness.until(lambda: harness.loader.adapters.is_ready(ref.digest))


def test_a_prefetch_that_is_acquired_is_not_read_again(
    make_harness: MakeHarness, make_adapter: MakeAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Event()
    reads = gate_reads(monkeypatch, gate)
    harness, ref = make_harness(), make_adapter()
    harness.loader.prefetch_to_host(ref)
    harness.loader.acquire(ref)
    gate.set()
    harness.until(lambda: harness.loader.adapters.is_ready(ref.digest))
    assert reads == [ref.digest]


@pytest.mark.parametrize("is_over", [True, False])
def test_a_request_that_waited_for_its_place_has_the_trace_of_its_prefetch(
    make_harness: MakeHarness, make_adapter: MakeAdapter, monkeypatch: pytest.MonkeyPatch, *, is_over: bool
) -> None:
    gate = Event()
    gate_reads(monkeypatch, gate)
    harness, ref = make_harness(), make_adapter()
    harness.loader.prefetch_to_host(ref)
    assert not harness.loader.take_traces(), "no request has begun it"
    if is_over:
        gate.set()
        harness.until(lambda: harness.loader._host.is_idle)
    placed_s = time.perf_counter()
    harness.loader.acquire(ref)
    gate.set()
    harness.until(lambda: harness.loader.adapters.is_ready(ref.digest))
    (trace,) = harness.loader.take_traces()
    phases = [span.phase for span in trace.spans]
    assert phases == [LoadPhase.READER, LoadPhase.PACKING, LoadPhase.STAGING, LoadPhase.COPYING]
    assert trace.asked_s < placed_s and is_over == (trace.spans[2].end_s < placed_s)


def test_hints_queue_and_are_read_to_host_memory_alone(
    make_harness: MakeHarness, make_adapter: MakeAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Event()
    reads = gate_reads(monkeypatch, gate)
    harness, refs = make_harness(), [make_adapter(seed=seed) for seed in range(20)]
    for ref in 2 * refs:
        harness.loader.queue_to_host(ref)
    assert harness.loader._host._reads.waiting, "none is dropped"
    harness.loader.acquire(refs[-1])
    assert refs[-1].digest in harness.loader._host._running, "a request passes all hints"
    gate.set()
    harness.until(lambda: harness.loader._host.is_idle and harness.loader.adapters.is_ready(refs[-1].digest))
    for ref in refs:
        harness.loader.queue_to_host(ref)
    assert harness.loader._host.is_idle and sorted(reads) == sorted(ref.digest for ref in refs)
    assert harness.loader.adapters.resident == (refs[-1].digest,)


def test_a_hint_evicts_neither_pinned_adapters_nor_those_in_use(
    make_harness: MakeHarness, make_adapter: MakeAdapter, tiny_model: ModelConfig
) -> None:
    pinned, used, *hinted = (make_adapter(seed=seed) for seed in range(8))
    harness = make_harness(host_bytes=4 * packed_num_bytes(pinned.ranks, tiny_model, torch.float32))
    harness.loader.prefetch(pinned, pin=True)
    harness.load(used)
    harness.until(lambda: harness.loader.adapters.is_ready(pinned.digest))
    held = harness.host_cache.get(used.digest)
    assert held is not None
    for ref in hinted:
        harness.loader.queue_to_host(ref)
    harness.until(lambda: harness.loader._host.is_idle)
    assert {pinned.digest, used.digest} < set(harness.host_cache.digests)
    assert set(harness.loader.adapters.resident) == {pinned.digest, used.digest}
    harness.host_cache.release(held)


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"rank": 136}, "max_lora_rank"),
        ({"rank": 8, "target_modules": ("lm_head", "q_proj")}, "lora_vocabulary"),
    ],
)
@pytest.mark.parametrize("pin", [None, True])
def test_an_adapter_that_no_request_may_use_is_not_prefetched(
    make_harness: MakeHarness,
    make_adapter: MakeAdapter,
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, Any],
    setting: str,
    pin: bool | None,
) -> None:
    harness, ref = make_harness(), make_adapter(**settings)
    harness.loader.prefetch(ref, pin=pin)
    assert harness.until(lambda: harness.loader._host.is_idle) == []
    assert not harness.host_cache.is_pinned(ref.digest) and harness.loader.adapters.resident == ()
    (message,) = caplog.messages
    assert f"adapter {ref.digest} is not prefetched: " in message and f"`engine.{setting}`" in message


def test_a_hint_that_fails_is_logged_only_when_the_adapter_is_used(
    make_harness: MakeHarness, make_adapter: MakeAdapter, caplog: pytest.LogCaptureFixture
) -> None:
    harness, ref = make_harness(), make_adapter(seed=9)
    (Path(ref.uri) / "adapter_model.safetensors").unlink()
    harness.loader.queue_to_host(ref)
    assert harness.until(lambda: harness.loader._host.is_idle) == [] and not caplog.records
    harness.loader.acquire(ref)
    (failure,) = harness.until(lambda: not harness.loader.adapters)
    assert failure.digest == ref.digest and len(caplog.records) == 1


def test_a_failed_prefetch_is_reported_when_the_adapter_is_acquired(
    make_harness: MakeHarness, make_adapter: MakeAdapter
) -> None:
    harness, ref = make_harness(), make_adapter(seed=9)
    (Path(ref.uri) / "adapter_model.safetensors").unlink()
    harness.loader.prefetch_to_host(ref)
    assert harness.until(lambda: harness.loader._host.is_idle) == []
    harness.loader.prefetch_to_host(ref)
    assert harness.loader._host.is_idle, "it is not tried again and again"
    harness.loader.acquire(ref)
    (failure,) = harness.until(lambda: not harness.loader.adapters)
    assert failure.digest == ref.digest


def test_one_that_was_prefetched_begins_no_second_record_when_its_copy_fails(
    make_harness: MakeHarness, make_adapter: MakeAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the request that is dropped for the failure would release the record of the prefetch."""
    harness, ref = make_harness(), make_adapter()

    def fail(*_: Any) -> None:
        raise RuntimeError("the link is broken")

    monkeypatch.setattr(LoraPool, "write", fail)
    harness.loader.acquire(ref)
    harness.until(lambda: bool(harness.loader.adapters.pages(ref.digest)))
    filling = harness.loader.adapters[ref.digest].filling
    assert filling is not None and isinstance(filling.done.exception(DEADLINE_S), RuntimeError)
    harness.loader.prefetch(ref)  # between the copy's end and the poll that sees it
    (failure,) = harness.until(lambda: not harness.loader.adapters)
    harness.loader.release(failure.digest)
    harness.loader.adapters.check_invariants()
    assert not harness.loader.adapters.refcounts
