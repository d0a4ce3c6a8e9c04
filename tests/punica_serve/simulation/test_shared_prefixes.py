"""Simulated GPUs share pages, also where pages are scarce and requests are preempted."""

import random
from collections.abc import Callable

import pytest

from punica_serve.base_model.prefill_budget import prefill_budget_of
from punica_serve.performance.profile import load_profile
from punica_serve.performance.step_time import StepTimeModel
from punica_serve.prefill_turns import PrefillTurns
from punica_serve.protocol import PrefixCaching, Request, SamplingParams
from punica_serve.shapes import shape_of
from punica_serve.simulation.gpu import SimulatedGpu
from simulated_gpus import gpu_info

SHARING = PrefixCaching("simulated")


def _request(number: int, prompt: tuple[int, ...], max_tokens: int = 5) -> Request:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=number)
    return Request(f"r{number:03}", number, prompt, params)


def test_a_group_computes_its_prefix_once(make_gpu: Callable[..., SimulatedGpu]) -> None:
    gpu = make_gpu(prefix_caching=SHARING, prefill_budget_tokens=64)
    for number in range(3):
        gpu.add(number, _request(number, (*range(1, 18), 50 + number)), 0.0)
    prefilled, cached = list[int](), list[tuple[int, int]]()
    while gpu.begin_step(0.0):
        step = gpu.end_step()
        gpu.check_invariants()
        prefilled += [step.plan.num_prefill_tokens] if step.plan.num_prefill_tokens else []
        cached += step.cached
    assert prefilled == [18, 2, 2] and cached == [(1, 16), (2, 16)]
    assert (gpu.prefixes.num_queries, gpu.prefixes.num_hits) == (54, 32)


@pytest.mark.parametrize("seed", range(3))
def test_any_history_keeps_the_accounting_whole(make_gpu: Callable[..., SimulatedGpu], seed: int) -> None:
    rng = random.Random(seed)
    gpu = make_gpu(prefix_caching=SHARING, num_kv_pages=14)
    unsent = [_request(number, tuple(range(1, rng.randint(2, 25))), rng.randint(1, 20)) for number in range(40)]
    finished, num_preempted = set[int](), 0
    while unsent or gpu.num_requests:
        if unsent and rng.random() < 0.5:
            request = unsent.pop()
            gpu.add(request.arrival_ns, request, 0.0)
        if rng.random() < 0.05:
            gpu.cancel(rng.randrange(40))
        if gpu.begin_step(0.0):
            step = gpu.end_step()
            finished |= {key for key, _ in step.finished}
            num_preempted += len(step.plan.preempted)
        gpu.check_invariants()
    assert num_preempted and len(finished) > 25
    assert gpu.num_free_kv_pages == 14 and gpu.num_shared_kv_pages == 0


@pytest.mark.parametrize("takes_turns", [True, False], ids=["turns", "first come, first served"])
def test_turns_do_not_change_the_steps_of_groups_in_a_closed_loop(
    takes_turns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """32 clients send 96 requests of 12 groups, whose prompts of 1,160 tokens share 1,000: a benchmark's workload."""
    if not takes_turns:
        monkeypatch.setattr(PrefillTurns, "order", lambda _, prefilling: prefilling)
    info = gpu_info(max_batch_size=32, page_size=16, num_kv_pages=4000, prefix_caching=SHARING)
    budget = prefill_budget_of(shape_of("llama-2-7b"), 512)
    gpu = SimulatedGpu(info, StepTimeModel(load_profile("h100-7b")), budget, vocab_size=32_000)
    prompts = [(number // 8,) * 1000 + (100 + number,) * 160 for number in range(96)]
    num_sent = num_steps = num_mixed = num_prefilled = 0
    while num_sent < len(prompts) or gpu.num_requests:
        while num_sent < len(prompts) and gpu.num_requests < 32:
            gpu.add(num_sent, _request(num_sent, prompts[num_sent], 101), 0.0)
            num_sent += 1
        assert gpu.begin_step(0.0) is not None
        plan = gpu.end_step().plan
        num_steps, num_mixed = num_steps + 1, num_mixed + bool(plan.prefills)
        num_prefilled += plan.num_prefill_tokens
    assert (num_steps, num_mixed, num_prefilled) == (346, 120, 28_032)
