"""Plans reach other ranks as the leader made them, whatever ends, is preempted or grows in between."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch

from punica_kernels.shared_prefixes import MIN_PREFIX_TOKENS, PrefixGroupTracker
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.batching.step_plan import StepPlan
from punica_serve.engine.batching.step_planner import StepPlanner
from punica_serve.engine.ranks.step_frames import StepDecoder, StepEncoder
from punica_serve.paging.prefix_hash import prefix_hash
from punica_serve.prefill_chunks import PrefillBudget
from punica_serve.protocol import PrefixCaching, Request, SamplingParams

CONTEXT = 64


def _seen(plan: StepPlan) -> object:
    """All that a runner reads of a plan."""
    chunks = [(chunk.start, chunk.end, chunk.is_last) for chunk in plan.prefills]
    rows = [
        (s.request, s.token_ids, s.num_cached, s.num_in_flight, s.pages, s.max_length, s.position)
        for s in plan.sequences
    ]
    return chunks, rows, plan.is_early, plan.shares_pages


def _groups(tracker: PrefixGroupTracker, plan: StepPlan) -> set[tuple[int, ...]]:
    """The pages and the requests of each group of decodes."""
    found = tracker.groups([sequence.pages for sequence in plan.decodes])
    members = np.split(found.requests, found.starts[1:-1]) if len(found.num_pages) else []
    return {(pages, *sorted(group.tolist())) for pages, group in zip(found.num_pages.tolist(), members, strict=True)}


def _request(random: Random, number: int) -> Request:
    """Every other prompt begins like the others."""
    prompt = tuple(random.randrange(100) if number % 2 else place for place in range(random.randint(1, 30)))
    return Request(f"{number}", number, prompt, SamplingParams(max_tokens=random.randint(1, 20), seed=number))


def _sequence(request: Request, *, is_sharing: bool) -> Sequence:
    sequence = Sequence.of(request, CONTEXT)
    if is_sharing:
        sequence.prefix_hash = prefix_hash(request, PrefixCaching("base"), 4)
    return sequence


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("is_sharing", [False, True])
def test_every_plan_arrives_as_it_was_made(tiny_model: ModelConfig, is_sharing: bool, window: int | None) -> None:
    """Pages that are shared replace those of a sequence that has begun; those behind a window are given back.

    Some steps are given up, as those are whose adapter does not arrive, and some frames come before a rank is ready.
    """
    random = Random(0)
    model = replace(tiny_model, windows=(window,) * tiny_model.num_hidden_layers)
    cache = KvCache(model, num_pages=24, page_size=4, dtype=torch.float32, device=torch.device("cpu"))
    planner = StepPlanner(cache, max_batch_size=6, prefill_budget=PrefillBudget(16), max_prefills=3)
    encoder, decoder = StepEncoder(), StepDecoder(CONTEXT, 4)
    tracker = PrefixGroupTracker(MIN_PREFIX_TOKENS)
    num_preempted = num_steps = num_sharing = num_groups = num_given_up = 0
    waiting = [_sequence(_request(random, number), is_sharing=is_sharing) for number in range(40)]
    in_flight: StepPlan | None = None
    while waiting or planner.running or planner.waiting:
        if waiting and random.random() < 0.3:
            planner.add(waiting.pop())
        while (sequence := planner.next_admissible()) is not None:
            planner.admit(sequence)
        plan, preempted = planner.plan(lambda _: True)
        num_preempted += len(preempted)
        if plan:
            num_steps += 1
            num_sharing += plan.shares_pages
            held = [page for sequence in plan.sequences for page in sequence.held_pages]
            assert plan.shares_pages or len(held) == len({*held})
            for number, request in encoder.introduce(plan):
                decoder.introduce(number, request)
            decoded = decoder.decode(tuple(encoder.encode(plan)))
            assert _seen(decoded) == _seen(plan)
            if window is None:
                # From one page on, whatever a page's size is. Groups that are kept are those of the step alone.
                num_groups += len(groups := _groups(tracker, decoded))
                assert groups == _groups(PrefixGroupTracker(MIN_PREFIX_TOKENS), plan)
            assert encoder.known == decoder.known
            if random.random() < 0.9:
                decoder.advance()
            if random.random() < 0.1:
                plan = None
                num_given_up += 1
            else:
                plan.advance()
        if in_flight:  # steps overlap: the tokens of one are known after the launch of the next
            for sequence in in_flight.sampled:
                if sequence.num_in_flight:
                    sequence.num_in_flight -= 1
                    sequence.token_ids.append(random.randrange(100))
                    if len(sequence.token_ids) >= sequence.max_length or random.random() < 0.02:
                        planner.remove(sequence)
        in_flight = plan
    assert num_steps > 100 and num_given_up > 5
    assert num_preempted > 5 or window
    assert (cache.prefixes.num_hits > 100) == is_sharing
    assert (num_sharing > 0) == is_sharing and num_sharing < num_steps
    assert (num_groups > 10) == (is_sharing and window is None)


def test_a_decode_brings_only_what_no_rank_expects() -> None:
    encoder, decoder = StepEncoder(), StepDecoder(CONTEXT, 4)
    sequences = [Sequence.of(Request(f"{n}", n, (1, 2, 3), SamplingParams(max_tokens=20)), CONTEXT) for n in range(8)]
    plan = StepPlan((), tuple(sequences))
    for number, request in encoder.introduce(plan):
        decoder.introduce(number, request)
    for number, sequence in enumerate(sequences):
        sequence.num_cached, sequence.pages[:] = 2, [number]

    def num_words(plan: StepPlan) -> int:
        """Counts those of the step's frame. Each sequence has a token after it."""
        words = encoder.encode(plan)
        assert _seen(decoder.decode(tuple(words))) == _seen(plan)
        plan.advance()
        for sequence in plan.decodes:
            sequence.token_ids.append(7)
            sequence.num_in_flight -= 1
        return len(words)

    num_words(plan)
    usual = num_words(plan)
    assert usual == 8 + 2 * len(sequences), "the header, and the row and id of each token"
    sequences[3].restart(1)
    sequences[5].pages.append(9)
    assert num_words(plan) == usual + 3 + 3, "a row's state, and its page"
    assert num_words(plan) == usual
    assert num_words(replace(plan, decodes=plan.decodes[1:])) == usual - 2 + 7, "other rows are named"
