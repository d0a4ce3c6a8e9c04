"""Tokens, times and loading adapters, which the comparison with the engine leaves out."""

from collections import defaultdict
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from punica_serve.errors import InvalidRequest
from punica_serve.simulation.gpu import SimulatedGpu
from punica_serve.simulation.tokens import token_at
from simulated_gpus import VOCAB_SIZE, adapter_ref, make_request

MakeGpu = Callable[..., SimulatedGpu]


def _run(gpu: SimulatedGpu, now_s: float = 0.0) -> dict[int, list[tuple[int, int]]]:
    """Steps until nothing runs: (position, token id) by request."""
    streams: dict[int, list[tuple[int, int]]] = defaultdict(list)
    while (plan := gpu.begin_step(now_s)) is not None:
        now_s += plan.duration_s
        step = gpu.end_step()
        for key, position, token_id in zip(step.keys, step.positions, step.token_ids, strict=True):
            streams[key].append((position, token_id))
    return streams


def test_a_stream_is_a_function_of_seed_and_position(make_gpu: MakeGpu) -> None:
    gpu = make_gpu()
    for number in range(3):
        gpu.add(number, make_request(number, num_prompt=3 + 5 * number, max_tokens=7), 0.0)
    streams = _run(gpu)
    for number in range(3):
        assert streams[number] == [(place, token_at(number, place, VOCAB_SIZE)) for place in range(7)]


def test_a_moved_request_goes_on_as_if_it_had_stayed(make_gpu: MakeGpu) -> None:
    gpu, other = make_gpu(), make_gpu()
    request = make_request(5, max_tokens=6)
    gpu.add(1, request, 0.0)
    for _ in range(3):
        gpu.begin_step(0.0)
        gpu.end_step()
    gpu.cancel(1)
    assert gpu.num_free_kv_pages == 32
    generated = tuple(token_at(5, place, VOCAB_SIZE) for place in range(3))
    other.add(2, replace(request, generated_ids=generated), 0.0)
    assert _run(other)[2] == [(place, token_at(5, place, VOCAB_SIZE)) for place in range(3, 6)]


def test_a_request_whose_adapter_is_loading_delays_no_other(make_gpu: MakeGpu) -> None:
    gpu = make_gpu()
    gpu.add(1, make_request(1, adapter=adapter_ref("far")), 0.0)  # 9 MB and 1 ms: 10 ms
    gpu.add(2, make_request(2), 0.0)
    assert gpu.next_ready_s == pytest.approx(0.010)
    first = gpu.begin_step(0.0)
    assert first is not None
    assert first.prefill is not None
    assert first.prefill.key == 2
    gpu.end_step()
    assert not gpu.resident
    second = gpu.begin_step(0.011)
    assert second is not None
    assert second.prefill is not None
    assert second.prefill.key == 1
    assert (second.batch_size, second.num_adapters) == (2, 1)
    gpu.end_step()
    assert gpu.resident == ("far",)


def test_nothing_runs_while_the_only_adapter_is_on_its_way(make_gpu: MakeGpu) -> None:
    gpu = make_gpu()
    gpu.add(1, make_request(1, adapter=adapter_ref("far")), 0.0)
    assert gpu.begin_step(0.005) is None
    assert gpu.begin_step(0.011) is not None


def test_requests_wait_for_room_in_the_lora_pool_and_unused_adapters_are_evicted(make_gpu: MakeGpu) -> None:
    gpu = make_gpu(num_lora_pages=2)
    for number, name in enumerate("abc"):
        gpu.add(number, make_request(number, adapter=adapter_ref(name)), 0.0)
    plan = gpu.begin_step(1.0)
    gpu.end_step()
    assert plan is not None
    assert gpu.resident == ("a", "b")
    gpu.cancel(0)
    gpu.begin_step(1.0)  # c is admitted, and a is evicted for it
    gpu.end_step()
    gpu.begin_step(2.0)
    gpu.end_step()
    assert gpu.resident == ("b", "c")
    gpu.check_invariants()


def test_a_request_that_could_never_run_is_refused(make_gpu: MakeGpu) -> None:
    gpu = make_gpu()
    with pytest.raises(InvalidRequest, match="the prompt's 128 tokens and an answer exceed the KvCache's 128"):
        gpu.add(1, make_request(1, num_prompt=128, max_tokens=1), 0.0)
    with pytest.raises(InvalidRequest, match="larger than the LoRA pool"):
        gpu.add(1, make_request(1, adapter=adapter_ref("large", rank=64)), 0.0)
    assert gpu.num_requests == 0


def test_a_request_that_outgrows_the_kvcache_starves_until_it_is_taken_away(make_gpu: MakeGpu) -> None:
    gpu = make_gpu()
    gpu.add(1, make_request(1, num_prompt=120, max_tokens=29), 0.0)
    while (plan := gpu.begin_step(0.0)) and not plan.preempted:
        gpu.end_step()
    assert plan and plan.preempted == (1,)
    gpu.end_step()
    gpu.cancel(1)
    assert gpu.num_free_kv_pages == 32
    gpu.check_invariants()


def test_an_unknown_request_is_cancelled_without_ado(make_gpu: MakeGpu) -> None:
    gpu = make_gpu()
    gpu.cancel(7)
    gpu.check_invariants()
