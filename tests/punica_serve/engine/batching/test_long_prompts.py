"""Long prompts and short ones share a GPU's prefills: none waits for all of another, and none waits forever."""

from collections.abc import Callable
from itertools import count

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from punica_serve.base_model.prefill_budget import prefill_budget_of
from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.batching.step_planner import StepPlanner
from punica_serve.paging.prefix_hash import PrefixHash
from punica_serve.prefill_chunks import PrefillBudget
from punica_serve.protocol import AdapterRef, Request, SamplingParams
from punica_serve.shapes import shape_of
from tiny_config import tiny_config

PAGE_SIZE, BUDGET = 16, 64
EQUAL_COSTS = PrefillBudget(BUDGET)
_MODEL = tiny_config()
#: A prompt and the steps that it takes alone, with a budget of 512, on a Llama-2-7B.
LONG_TOKENS, LONG_STEPS = 32_000, 158
SHORT_TOKENS = 160


def _ready(sequence: Sequence) -> bool:
    return True


class _Run:
    """A planner and the steps that prefilled; answers have one token unless told otherwise."""

    def __init__(
        self,
        num_pages: int = 4096,
        *,
        max_prefills: int = 1,
        max_batch_size: int = 512,
        budget: PrefillBudget = EQUAL_COSTS,
    ) -> None:
        cpu = torch.device("cpu")
        self._cache = KvCache(_MODEL, num_pages=num_pages, page_size=PAGE_SIZE, dtype=torch.float32, device=cpu)
        self.planner = StepPlanner(
            self._cache,
            max_batch_size=max_batch_size,
            prefill_budget=budget,
            max_prefills=max_prefills,
        )
        self.num_steps = 0
        self.num_computed = 0
        self._arrivals = count()

    def add(self, num_prompt: int, max_tokens: int = 1, adapter: str | None = None) -> Sequence:
        number = next(self._arrivals)
        ref = AdapterRef(adapter, "", 0, {"q_proj": 8}) if adapter else None
        request = Request(f"{number:04}", number, (1,) * num_prompt, SamplingParams(max_tokens=max_tokens), ref)
        sequence = Sequence.of(request, 1 << 20)
        self.planner.add(sequence)
        return sequence

    def step(
        self, is_ready: Callable[[Sequence], bool] = _ready, may_join: Callable[[Sequence, int], bool] | None = None
    ) -> list[Sequence]:
        """One step; its prefills."""
        while (sequence := self.planner.next_admissible()) is not None:
            self.planner.admit(sequence)
        plan, _ = self.planner.plan(is_ready, *([may_join] if may_join else []))
        self.planner.check_invariants()
        if plan is None:
            return []
        self.num_steps += bool(plan.prefills)
        self.num_computed += plan.num_prefill_tokens
        for sequence in plan.decodes:
            sequence.num_cached += 1
        for chunk in plan.prefills:
            chunk.sequence.num_cached = chunk.end
        for sequence in plan.sampled:
            sequence.token_ids.append(1)
            if sequence.is_complete:
                self.planner.remove(sequence)
        return [chunk.sequence for chunk in plan.prefills]

    def finish(self, *sequences: Sequence) -> None:
        deadline = self.num_steps + 5_000
        while not all(sequence.is_complete for sequence in sequences):
            assert self.num_steps < deadline, "requests hold each other up"
            self.step()


def _long_run(max_prefills: int = 1) -> _Run:
    return _Run(max_prefills=max_prefills, budget=prefill_budget_of(shape_of("llama-2-7b"), 512))


def test_a_short_prompt_gets_its_token_in_the_next_step_while_a_long_one_comes_in() -> None:
    run = _long_run()
    long = run.add(LONG_TOKENS)
    num_short = 0
    while not long.is_complete:
        for _ in range(4):
            run.step()
        short = run.add(SHORT_TOKENS)
        run.step()
        assert short.is_complete
        num_short += 1
    assert num_short > 30
    assert run.num_steps <= LONG_STEPS + num_short + 4, "nobody else took a step"


def test_short_prompts_that_come_at_once_wait_for_one_chunk_each() -> None:
    run = _long_run()
    run.add(LONG_TOKENS)
    run.step()
    short = [run.add(SHORT_TOKENS) for _ in range(8)]
    run.finish(*short)
    assert run.num_steps == 1 + 2 * len(short) - 1


def test_an_endless_stream_of_short_prompts_makes_a_long_one_take_twice_as_many_steps_at_most() -> None:
    alone = _long_run()
    alone.finish(alone.add(LONG_TOKENS))
    assert alone.num_steps == LONG_STEPS
    for max_prefills in (1, 3):
        run = _long_run(max_prefills)
        long = run.add(LONG_TOKENS)
        while not long.is_complete:
            assert run.num_steps < 2 * LONG_STEPS
            for _ in range(max_prefills):
                run.add(512)
            run.step()
        assert run.num_steps > LONG_STEPS


def test_a_short_prompt_takes_its_share_of_a_step_and_a_long_one_the_rest() -> None:
    run = _long_run(max_prefills=2)
    long = run.add(LONG_TOKENS)
    run.step()
    short = run.add(SHORT_TOKENS)
    assert run.step() == [short, long]
    assert long.num_cached == 512 + (512 - SHORT_TOKENS)


_arriving = st.lists(st.tuples(st.integers(1, 12 * BUDGET), st.integers(0, 6)), min_size=1, max_size=20)


@settings(max_examples=examples(150), deadline=None)
@given(requests=_arriving, max_prefills=st.integers(1, 3))
def test_no_prompt_takes_more_than_twice_the_steps_of_first_come_first_served(
    requests: list[tuple[int, int]], max_prefills: int
) -> None:
    """Steps are allowed for the older prompts, as far as they are not computed, and its own."""
    run = _Run(max_prefills=max_prefills)
    allowed: dict[str, int] = {}
    sequences: list[Sequence] = []

    def step() -> None:
        run.step()
        late = [s for s in sequences if run.num_steps > allowed[s.request_id] and not s.is_complete]
        assert not late

    for num_prompt, num_steps in requests:
        sequences.append(run.add(num_prompt))
        steps = sum(-(-s.num_uncached // BUDGET) for s in sequences if not s.is_complete)
        allowed[sequences[-1].request_id] = run.num_steps + 2 * steps
        for _ in range(num_steps):
            step()
    while not all(sequence.is_complete for sequence in sequences):
        step()


@settings(max_examples=examples(100), deadline=None)
@given(
    lengths=st.one_of(
        st.lists(st.integers(2, BUDGET), min_size=1, max_size=20),
        st.builds(lambda length, times: [length] * times, st.integers(2, 12 * BUDGET), st.integers(1, 12)),
    ),
    num_steps=st.lists(st.integers(0, 3), min_size=20, max_size=20),
    max_prefills=st.integers(1, 3),
)
def test_prompts_of_one_step_or_of_one_length_are_prefilled_first_come_first_served(
    lengths: list[int], num_steps: list[int], max_prefills: int
) -> None:
    run = _Run(max_prefills=max_prefills)
    sequences: list[Sequence] = []

    def step() -> None:
        # The last token of a prompt alone counts as a decode, which every step runs.
        due = [sequence for sequence in sequences if not (sequence.is_complete or sequence.is_decoding)]
        prefills = run.step()
        assert prefills == due[: len(prefills)]
        assert prefills or not due

    for length, steps in zip(lengths, num_steps, strict=False):
        sequences.append(run.add(length))
        for _ in range(steps):
            step()
    while not all(sequence.is_complete for sequence in sequences):
        step()


@settings(max_examples=examples(100), deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.integers(1, 12 * BUDGET), st.integers(1, 60), st.integers(0, 4)), min_size=2, max_size=12
    ),
    max_batch_size=st.integers(1, 4),
    max_prefills=st.integers(1, 3),
)
def test_requests_of_any_length_end_though_pages_and_places_are_scarce(
    requests: list[tuple[int, int, int]], max_batch_size: int, max_prefills: int
) -> None:
    """The pages hold little more than the longest of them."""
    longest = max(num_prompt + max_tokens for num_prompt, max_tokens, _ in requests)
    run = _Run(longest // PAGE_SIZE + 2, max_batch_size=max_batch_size, max_prefills=max_prefills)
    sequences: list[Sequence] = []
    for num_prompt, max_tokens, num_steps in requests:
        sequences.append(run.add(num_prompt, max_tokens))
        for _ in range(num_steps):
            run.step()
    run.finish(*sequences)


def test_a_prefix_is_computed_once_though_its_requests_take_turns() -> None:
    for max_prefills in (1, 2):
        run = _Run(max_prefills=max_prefills)
        sequences = [run.add(num_prompt) for num_prompt in (20 * BUDGET, 6 * BUDGET, 3 * BUDGET)]
        for sequence in sequences:
            sequence.prefix_hash = PrefixHash((), PAGE_SIZE)
        run.finish(*sequences)
        # A prompt whose tokens are all known computes its last page for the logits.
        assert 20 * BUDGET <= run.num_computed <= 20 * BUDGET + 2 * PAGE_SIZE


def test_a_cold_short_prompt_joins_the_copy_of_its_adapter_in_its_turn() -> None:
    run = _Run(max_prefills=2)
    long = run.add(20 * BUDGET)
    cold = run.add(8, adapter="cold")

    def step() -> list[Sequence]:
        return run.step(lambda sequence: sequence is not cold, lambda sequence, _: sequence is cold)

    assert step() == [cold]
    assert step() == [long]


def test_a_step_has_room_for_a_short_prompt_unless_it_is_the_long_ones_turn() -> None:
    run = _Run()
    run.add(20 * BUDGET)
    run.step()
    assert run.planner.has_room
    run.add(8)
    run.step()
    assert not run.planner.has_room
    run.step()
    assert run.planner.has_room
