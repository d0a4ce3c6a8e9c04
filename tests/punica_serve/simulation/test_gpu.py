"""Tokens, times and loading adapters, which the comparison with the engine leaves out."""

from collections import defaultdict
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from punica_serve.errors import InvalidRequest
from punica_serve.performance.profile import PerformanceProfile
from punica_serve.performance.step_time import StepTimeModel
from punica_serve.prefill_chunks import PrefillBudget
from punica_serve.simulation.gpu import SimulatedGpu, SimulatedStep
from punica_serve.simulation.tokens import token_at
from simulated_gpus import VOCAB_SIZE, adapter_ref, gpu_info, make_request

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
    assert [prefill.row.key for prefill in first.prefills] == [2]
    gpu.end_step()
    assert not gpu.resident
    second = gpu.begin_step(0.011)
    assert second is not None
    assert [prefill.row.key for prefill in second.prefills] == [1]
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


def test_a_request_that_outgrows_the_kvcache_waits_until_it_is_preempted(make_gpu: MakeGpu) -> None:
    gpu = make_gpu()
    gpu.add(1, make_request(1, num_prompt=120, max_tokens=29), 0.0)
    while (plan := gpu.begin_step(0.0)) and not plan.preempted:
        gpu.end_step()
    assert plan and plan.preempted == (1,)
    gpu.end_step()
    gpu.cancel(1)
    assert gpu.num_free_kv_pages == 32
    gpu.check_invariants()


def test_a_long_prompt_and_short_ones_take_turns(make_gpu: MakeGpu) -> None:
    gpu = make_gpu()
    gpu.add(1, make_request(1, num_prompt=100), 0.0)
    prefilled = []
    for number in range(8):
        if number in (2, 3):
            gpu.add(number, make_request(number), 0.0)
        plan = gpu.begin_step(0.0)
        assert plan is not None
        prefilled += [prefill.row.key for prefill in plan.prefills]
        gpu.end_step()
        gpu.check_invariants()
    assert prefilled == [1, 1, 2, 1, 3, 1, 1, 1]


def test_an_unknown_request_is_cancelled_without_ado(make_gpu: MakeGpu) -> None:
    gpu = make_gpu()
    gpu.cancel(7)
    gpu.check_invariants()


@pytest.fixture
def apart(profile: PerformanceProfile) -> SimulatedGpu:
    """A GPU of 8 prefill tokens a step, whose decodes pause for prefills."""
    return SimulatedGpu(
        gpu_info(),
        StepTimeModel(profile.model_copy(update={"prefills": "apart"})),
        prefill_budget=PrefillBudget(8),
        vocab_size=VOCAB_SIZE,
    )


def _step(gpu: SimulatedGpu, now_s: float = 1.0) -> SimulatedStep:
    assert gpu.begin_step(now_s) is not None
    return gpu.end_step()


def test_prefills_apart_run_together_while_decodes_pause(apart: SimulatedGpu) -> None:
    apart.add(1, make_request(1, num_prompt=3), 1.0)
    assert _step(apart).keys == (1,)
    for number in (2, 3):
        apart.add(number, make_request(number, num_prompt=4), 1.0)
    together = _step(apart)
    assert sorted(together.keys) == [2, 3], "request 1 pauses"
    assert (together.plan.num_prefill_tokens, together.plan.num_decodes, together.plan.batch_size) == (8, 0, 2)
    assert together.plan.duration_s == pytest.approx(0.018), "one prefill of 8 tokens"
    decodes = _step(apart)
    assert sorted(decodes.keys) == [1, 2, 3]
    assert decodes.plan.prefills == ()
    apart.check_invariants()


def test_prefills_apart_are_cut_by_the_budget_first_come_first_served(apart: SimulatedGpu) -> None:
    for number in range(3):
        apart.add(number, make_request(number, num_prompt=5), 1.0)
    first = _step(apart)
    assert [(row.key, num_tokens) for row, num_tokens in first.plan.prefills] == [(0, 5), (1, 3)]
    assert first.keys == (0,)
    second = _step(apart)
    assert [(row.key, num_tokens) for row, num_tokens in second.plan.prefills] == [(1, 2), (2, 5)]
    assert sorted(second.keys) == [1, 2]
    assert sorted(_step(apart).keys) == [0, 1, 2]


def test_prefills_apart_pay_for_the_lora_of_their_rows_alone(apart: SimulatedGpu) -> None:
    apart.add(1, make_request(1, num_prompt=3, adapter=adapter_ref("decodes", rank=16)), 0.0)
    _step(apart)
    for number in (2, 3):
        apart.add(number, make_request(number, num_prompt=3, adapter=adapter_ref("shared")), 1.0)
    plan = _step(apart, now_s=2.0).plan
    assert plan.num_adapters == 1
    assert plan.duration_s == pytest.approx(0.016 + 0.0005), "6 tokens, and one page of rank 8"


def test_decodes_go_on_while_the_adapter_of_the_next_prefill_is_loading(apart: SimulatedGpu) -> None:
    apart.add(1, make_request(1, num_prompt=3), 0.0)
    _step(apart, now_s=0.0)
    apart.add(2, make_request(2, adapter=adapter_ref("far")), 0.0)  # 10 ms
    assert _step(apart, now_s=0.005).keys == (1,)
    assert _step(apart, now_s=0.011).keys == (2,)


def test_a_stream_is_the_same_with_prefills_apart(apart: SimulatedGpu) -> None:
    for number in range(4):
        apart.add(number, make_request(number, num_prompt=3 + 5 * number, max_tokens=20), 0.0)
    streams = _run(apart)
    for number in range(4):
        assert [position for position, _ in streams[number]] == list(range(20))
    assert apart.num_requests == 0 and apart.num_free_kv_pages == 32
    apart.check_invariants()
