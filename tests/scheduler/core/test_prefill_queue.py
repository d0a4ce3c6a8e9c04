"""The scheduler's count of how far prompts are follows the chunks that a GPU computes."""

import random

import pytest

from placed_requests import PlacedRequests
from punica_scheduler.core.prefill_queue import PrefillQueue
from punica_serve.performance.step_time import StepTimeModel
from punica_serve.prefill_chunks import PrefillBudget
from punica_serve.simulation.gpu import SimulatedGpu
from simulated_gpus import VOCAB_SIZE, gpu_info, round_profile

BUDGET = PrefillBudget(8)


def progress(queue: PrefillQueue) -> list[int]:
    return [due.num_cached for due in queue]


def test_tokens_of_a_step_without_first_tokens_are_a_chunk_of_the_prompt_whose_turn_it_is() -> None:
    placed, queue = PlacedRequests(""), PrefillQueue(BUDGET)
    for counter, prompt in ((1, 100), (2, 20)):
        queue.add(counter, placed.request(prompt=prompt), 1, 1)
    for step in range(1, 4):
        queue.stepped(step, 8)
    assert progress(queue) == [8, 16], "the shorter one and the older one in turn"
    assert queue.begun(2) is not None
    queue.stepped(4, 4)
    assert progress(queue) == [8], "the last 4 tokens were the shorter one's"
    queue.stepped(5, 8)
    assert progress(queue) == [16]


def test_a_prompt_that_was_not_there_when_the_step_began_gets_nothing() -> None:
    placed, queue = PlacedRequests(""), PrefillQueue(BUDGET)
    queue.add(1, placed.request(prompt=100), 1, 1)
    queue.add(2, placed.request(prompt=20), 3, 3)
    queue.stepped(2, 8)
    assert progress(queue) == [8, 0]


def test_a_prompt_is_never_taken_to_be_computed_before_its_token_comes() -> None:
    placed, queue = PlacedRequests(""), PrefillQueue(BUDGET)
    record = placed.request(prompt=10)
    queue.add(1, record, 1, 1)
    queue.stepped(1, 500)
    assert progress(queue) == [9]
    queue.check_invariants({1: record})


@pytest.mark.parametrize("max_prefills", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_the_count_is_the_gpus(max_prefills: int, seed: int) -> None:
    """Requests come and leave while others prefill; all hear of a step before the next begins."""
    rng = random.Random(seed)
    info = gpu_info(max_batch_size=8, num_kv_pages=1000, max_prefills=max_prefills)
    gpu = SimulatedGpu(info, StepTimeModel(round_profile()), BUDGET, vocab_size=VOCAB_SIZE)
    placed, queue, cached, num_chunks = PlacedRequests(""), PrefillQueue(BUDGET), dict[int, int](), 0
    for step in range(1, 300):
        if gpu.num_requests < 8 and rng.random() < 0.3:
            record = placed.request(prompt=rng.choice((3, 8, 20, 90)), max_tokens=rng.randint(1, 5))
            gpu.add(record.handle, record.request, 0.0)
            queue.add(record.handle, record, step, step)
            cached[record.handle] = 0
        if cached and rng.random() < 0.02:
            leaving = rng.choice([*cached])
            gpu.cancel(leaving)
            queue.remove(leaving)
            del cached[leaving]
        if (plan := gpu.begin_step(0.0)) is None:
            continue
        num_tokens = plan.num_prefill_tokens
        for key in gpu.end_step().keys:
            queue.begun(key)
            cached.pop(key, None)
        cached |= {row.key: row.num_cached for row, _ in plan.prefills if row.key in cached}
        queue.stepped(step, num_tokens)
        assert {due.record.handle: due.num_cached for due in queue} == cached
        num_chunks += any(cached.values())
    assert num_chunks > 20
