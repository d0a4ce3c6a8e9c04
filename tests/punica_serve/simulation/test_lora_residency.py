"""The LoRA pool of a simulated GPU: which adapters it has, loads and evicts."""

import pytest

from punica_serve.base_model.lora_layout import LORA_GROUPS
from punica_serve.performance.profile import AdapterLoad
from punica_serve.simulation.lora_residency import LoraResidency
from simulated_gpus import adapter_ref


@pytest.fixture
def loras() -> LoraResidency:
    """Room for two adapters; a copy of 9 MB takes 10 ms."""
    return LoraResidency(dict.fromkeys(LORA_GROUPS, 2), AdapterLoad(latency_ms=1.0, gb_per_s=1.0))


def test_copies_go_one_after_the_other(loras: LoraResidency) -> None:
    loras.acquire(adapter_ref("a"), 0.0)
    loras.acquire(adapter_ref("b"), 0.0)
    assert loras.next_ready_s == pytest.approx(0.010)
    loras.settle(0.0105)
    assert loras.is_ready("a")
    assert not loras.is_ready("b")
    assert loras.next_ready_s == pytest.approx(0.020)
    loras.settle(0.0205)
    assert loras.resident == ("a", "b")
    assert loras.next_ready_s is None


def test_a_resident_adapter_is_ready_at_once(loras: LoraResidency) -> None:
    loras.acquire(adapter_ref("a"), 0.0)
    loras.settle(1.0)
    loras.release("a")
    loras.acquire(adapter_ref("a"), 1.0)
    assert loras.is_ready("a")


def test_adapters_in_use_stay_and_the_least_recently_used_is_evicted(loras: LoraResidency) -> None:
    for name in ("a", "b"):
        loras.acquire(adapter_ref(name), 0.0)
    assert not loras.has_room_for(adapter_ref("c"))
    assert loras.has_room_for(adapter_ref("a"))
    loras.settle(1.0)
    loras.release("b")
    loras.release("a")
    loras.acquire(adapter_ref("c"), 1.0)
    loras.settle(2.0)
    assert loras.resident == ("a", "c")
    loras.check_invariants()


def test_a_loading_adapter_without_requests_can_be_evicted(loras: LoraResidency) -> None:
    loras.acquire(adapter_ref("a", rank=16), 0.0)
    loras.release("a")
    loras.acquire(adapter_ref("b", rank=16), 0.0)
    loras.settle(1.0)
    assert loras.resident == ("b",)
    loras.check_invariants()


def test_an_adapter_larger_than_the_pool_does_not_fit(loras: LoraResidency) -> None:
    assert loras.could_hold(adapter_ref("a", rank=16))
    assert not loras.could_hold(adapter_ref("a", rank=17))


def test_the_base_model_is_always_ready(loras: LoraResidency) -> None:
    assert loras.is_ready(None)


def test_a_prefetch_evicts_unused_adapters_but_none_in_use_or_pinned(loras: LoraResidency) -> None:
    loras.acquire(adapter_ref("used"), 0.0)
    loras.prefetch(adapter_ref("a"), 0.0, pin=None)
    loras.prefetch(adapter_ref("b"), 0.0, pin=True)
    loras.prefetch(adapter_ref("c"), 0.0, pin=None)
    loras.settle(1.0)
    assert loras.resident == ("b", "used")
    assert loras.host.digests == ("a", "b", "c", "used"), "there is room on the host"
    loras.check_invariants()


def test_pinned_adapters_are_evicted_last_and_only_for_requests(loras: LoraResidency) -> None:
    loras.prefetch(adapter_ref("pinned"), 0.0, pin=True)
    loras.prefetch(adapter_ref("a"), 0.0, pin=None)
    loras.acquire(adapter_ref("b"), 0.0)
    loras.settle(1.0)
    assert loras.resident == ("b", "pinned")
    loras.acquire(adapter_ref("c"), 1.0)
    loras.settle(2.0)
    assert loras.resident == ("b", "c")
    loras.check_invariants()


def test_an_unpinned_adapter_is_evicted_like_others(loras: LoraResidency) -> None:
    for name in ("a", "b"):
        loras.prefetch(adapter_ref(name), 0.0, pin=True)
    loras.prefetch(adapter_ref("a"), 0.0, pin=False)
    loras.acquire(adapter_ref("c"), 0.0)
    loras.settle(1.0)
    assert loras.resident == ("b", "c")


def test_an_adapter_is_evicted_at_once_or_after_its_last_request(loras: LoraResidency) -> None:
    for name in ("unused", "used"):
        loras.acquire(adapter_ref(name), 0.0)
    loras.release("unused")
    loras.settle(1.0)
    assert loras.host.take_changes() == (("unused", "used"), ())
    for name in ("unused", "used", "never seen"):
        loras.evict(name)
    assert (loras.resident, loras.host.digests) == (("used",), ("used",))
    loras.release("used")
    assert (loras.resident, loras.host.digests) == ((), ())
    assert loras.host.take_changes() == ((), ("unused", "used"))
    loras.check_invariants()


def test_an_eviction_is_no_ban(loras: LoraResidency) -> None:
    loras.acquire(adapter_ref("a"), 0.0)
    loras.evict("a")
    loras.prefetch(adapter_ref("a"), 0.0, pin=None)
    loras.release("a")
    loras.settle(1.0)
    assert loras.resident == ("a",)
