"""How long short prompts and long ones wait for each other, in time: a simulated H200 with a Llama-2-7B."""

import random
from itertools import count

import pytest

from punica_serve.base_model.prefill_budget import prefill_budget_of
from punica_serve.bench.percentiles import percentiles_ms
from punica_serve.performance.profile import load_profile
from punica_serve.performance.step_time import StepTimeModel
from punica_serve.protocol import Request, SamplingParams
from punica_serve.shapes import shape_of
from punica_serve.simulation.gpu import SimulatedGpu
from simulated_gpus import gpu_info

#: Tokens of prompts and answers.
LONG, SHORT = (32_000, 1), (160, 100)
SENT_AT_S, ENDS_AT_S = 2.0, 5.0


def test_a_prompt_takes_as_long_as_an_engine_measured() -> None:
    """65,536 tokens took an H100 with the shape of Llama-3.1-8B 9.4 s with 256 decode steps of 8.55 ms, so 7.2 without:
    docs/performance.md.
    """
    budget = prefill_budget_of(shape_of("llama-3.1-8b"), 512)
    gpu = SimulatedGpu(
        gpu_info(page_size=16, num_kv_pages=6000),
        StepTimeModel(load_profile("h100-7b")),
        prefill_budget=budget,
        vocab_size=128_256,
    )
    gpu.add(1, Request("1", 1, (1,) * 65_536, SamplingParams(max_tokens=1, ignore_eos=True)), 0.0)
    steps_s = []
    while plan := gpu.begin_step(0.0):
        steps_s.append(plan.duration_s)
        gpu.end_step()
    assert sum(steps_s) == pytest.approx(7.2, rel=0.12)
    assert max(steps_s[5:-1]) / min(steps_s[5:-1]) < 1.25, "chunks shrink as far as their context makes them dear"


def first_tokens_s(arrivals: list[tuple[float, tuple[int, int]]], max_prefills: int) -> list[float]:
    """The time from each request's arrival to its first token; arrivals are in order."""
    gpu = SimulatedGpu(
        gpu_info(max_batch_size=32, page_size=16, num_kv_pages=6000, max_prefills=max_prefills),
        StepTimeModel(load_profile("h200-7b")),
        prefill_budget=prefill_budget_of(shape_of("llama-2-7b"), 512),
        vocab_size=32_000,
    )
    firsts_s: dict[int, float] = {}
    now_s, numbers = 0.0, count()
    coming = [*arrivals]
    while coming or gpu.num_requests:
        while coming and coming[0][0] <= now_s:
            number, (_, (num_prompt, max_tokens)) = next(numbers), coming.pop(0)
            params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=number)
            gpu.add(number, Request(f"{number:04}", number, (1,) * num_prompt, params), now_s)
        if (plan := gpu.begin_step(now_s)) is None:
            now_s = coming[0][0]
            continue
        now_s += plan.duration_s
        for key in gpu.end_step().keys:
            firsts_s.setdefault(key, now_s)
    return [firsts_s[number] - at_s for number, (at_s, _) in enumerate(arrivals)]


@pytest.mark.parametrize("max_prefills", [1, 2])
@pytest.mark.parametrize(("rate_per_s", "most_ms", "most_over_alone"), [(10, 55, 1.2), (15, 55, 1.25)])
def test_first_tokens_while_a_long_prompt_comes_in(
    rate_per_s: int, most_ms: float, most_over_alone: float, max_prefills: int
) -> None:
    (alone_s,) = first_tokens_s([(SENT_AT_S, LONG)], max_prefills)
    rng, at_s = random.Random(1), 0.0
    arrivals = [(SENT_AT_S, LONG)]
    while (at_s := at_s + rng.expovariate(rate_per_s)) < ENDS_AT_S:
        arrivals.append((at_s, SHORT))
    arrivals.sort()
    firsts_s = first_tokens_s(arrivals, max_prefills)
    (long_s,) = (first_s for first_s, (_, length) in zip(firsts_s, arrivals, strict=True) if length is LONG)
    beside = [
        first_s
        for first_s, (at_s, length) in zip(firsts_s, arrivals, strict=True)
        if length is SHORT and SENT_AT_S <= at_s <= SENT_AT_S + long_s
    ]
    assert len(beside) > 10
    (p99_ms,) = percentiles_ms(beside, 99)
    assert p99_ms <= most_ms
    assert long_s <= most_over_alone * alone_s
