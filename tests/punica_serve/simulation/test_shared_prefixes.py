"""Simulated GPUs share pages, also where pages are scarce and requests are preempted."""

import random
from collections.abc import Callable

import pytest

from punica_serve.protocol import PrefixCaching, Request, SamplingParams
from punica_serve.simulation.gpu import SimulatedGpu

SHARING = PrefixCaching("simulated")


def _request(number: int, prompt: tuple[int, ...], max_tokens: int = 5) -> Request:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=number)
    return Request(f"r{number}", number, prompt, params)


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
