"""The planner gives pages back behind windows, and no row ever reads a page that holds something else."""

from collections.abc import Sequence as Tokens

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.batching.step_plan import StepPlan
from punica_serve.engine.batching.step_planner import StepPlanner
from punica_serve.paging.prefix_hash import prefix_hash
from punica_serve.prefill_chunks import PrefillBudget
from punica_serve.protocol import PrefixCaching, Request, SamplingParams
from tiny_config import tiny_config

PAGE_SIZE, WINDOW, BUDGET = 4, 9, 8
_MODEL = tiny_config(windows=(WINDOW, 5))
_NEXT_TOKEN = 7


class _Run:
    """A planner whose pages hold, in place of keys and values, the tokens that these follow from."""

    def __init__(self, num_pages: int, max_prefills: int = 1, *, is_sharing: bool = False) -> None:
        cpu = torch.device("cpu")
        cache = KvCache(_MODEL, num_pages=num_pages, page_size=PAGE_SIZE, dtype=torch.float32, device=cpu)
        self.cache = cache
        self.planner = StepPlanner(
            cache, max_batch_size=4, prefill_budget=PrefillBudget(BUDGET), max_prefills=max_prefills
        )
        self.num_preempted = self.num_ended = self.num_found = 0
        self._is_sharing = is_sharing
        self._contents: dict[int, tuple[int, ...]] = {}

    def add(self, number: int, prompt: Tokens[int], max_tokens: int) -> Sequence:
        request = Request(f"{number:03}", number, tuple(prompt), SamplingParams(max_tokens=max_tokens))
        sequence = Sequence.of(request, 1 << 20)
        if self._is_sharing:
            sequence.prefix_hash = prefix_hash(request, PrefixCaching("base"), PAGE_SIZE)
        self.planner.add(sequence)
        return sequence

    def step(self) -> None:
        while (sequence := self.planner.next_admissible()) is not None:
            self.planner.admit(sequence)
        plan, preempted = self.planner.plan(lambda _: True)
        self.num_preempted += len(preempted)
        self.planner.check_invariants()
        for sequence in self.planner.running:
            assert len(sequence.held_pages) <= self.planner.page_rule.held_by(sequence.num_tokens + 1)
        if plan:
            for sequence in plan.decodes:
                assert len(sequence.held_pages) <= self.planner.page_rule.held_decoding(sequence.num_tokens + 1)
            self._run(plan)

    def run(self) -> None:
        """To the end of all; a step without progress would be the last."""
        num_steps = 0
        while self.planner.running or self.planner.waiting:
            num_steps += 1
            assert num_steps < 5_000, "requests hold each other up"
            self.step()
        assert self.cache.pages.num_free == self.cache.pages.num_pages

    def _run(self, plan: StepPlan) -> None:
        for chunk in plan.prefills:
            self._compute(chunk.sequence, chunk.end)
        for sequence in plan.decodes:
            self._compute(sequence, sequence.num_cached + 1)
        for sequence in plan.sampled:
            sequence.token_ids.append(_NEXT_TOKEN)
            if sequence.is_complete:
                self.num_ended += 1
                self.num_found += sequence.num_found
                self.planner.remove(sequence)

    def _compute(self, sequence: Sequence, end: int) -> None:
        """Reads all that the chunk's rows see, and writes the chunk."""
        start = sequence.num_cached
        first_seen = max(0, start - WINDOW + 1)
        for page in range(first_seen // PAGE_SIZE, -(-start // PAGE_SIZE)):
            known = sequence.token_ids[: min((page + 1) * PAGE_SIZE, start)]
            assert self._contents[sequence.pages[page]] == tuple(known), "a row reads what another wrote"
        for page in range(start // PAGE_SIZE, -(-end // PAGE_SIZE)):
            assert page >= sequence.num_released
            self._contents[sequence.pages[page]] = tuple(sequence.token_ids[: min((page + 1) * PAGE_SIZE, end)])
        sequence.num_cached = end


def test_a_request_of_many_windows_runs_in_the_pages_of_one() -> None:
    run = _Run(num_pages=5)
    assert run.planner.page_rule.most_pages == 5
    assert run.planner.longest_request > 1 << 40
    run.add(1, range(1000), max_tokens=300)
    run.run()
    assert (run.num_ended, run.num_preempted) == (1, 0)


def test_without_windows_in_every_layer_all_pages_are_kept() -> None:
    assert tiny_config(windows=(WINDOW, None)).spec.page_window is None
    assert tiny_config().spec.page_window is None
    assert _MODEL.spec.page_window == WINDOW


def test_requests_that_decode_behind_their_windows_leave_the_rest_to_others() -> None:
    """Each needs five pages for its prompt's chunks, and at most four for the rows of its answer."""
    run = _Run(num_pages=17)
    for number in range(4):
        run.add(number, range(40), max_tokens=100)
    run.run()
    assert (run.num_ended, run.num_preempted) == (4, 0)


@settings(max_examples=examples(150), deadline=None)
@given(
    num_pages=st.integers(5, 24),
    max_prefills=st.integers(1, 3),
    is_sharing=st.booleans(),
    requests=st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 70), st.integers(1, 30), st.integers(0, 40)),
        min_size=1,
        max_size=12,
    ),
)
def test_every_row_reads_what_its_own_tokens_wrote(
    num_pages: int, max_prefills: int, is_sharing: bool, requests: list[tuple[int, int, int, int]]
) -> None:
    """Prompts begin alike up to a point, and some steps pass between two arrivals."""
    run = _Run(num_pages, max_prefills, is_sharing=is_sharing)
    for number, (kind, num_prompt, max_tokens, num_steps) in enumerate(requests):
        run.add(number, [place if place < 50 else 100 * kind + place for place in range(num_prompt)], max_tokens)
        for _ in range(num_steps):
            run.step()
    run.run()
    assert run.num_ended == len(requests)
    assert is_sharing or not run.num_found


def test_a_prompt_is_found_though_its_first_pages_are_gone() -> None:
    run = _Run(num_pages=16, is_sharing=True)
    prompt = tuple(range(100))
    run.add(0, prompt, max_tokens=3)
    run.run()
    assert run.cache.pages.num_known < len(prompt) // PAGE_SIZE, "the case is too easy: all pages are still there"
    run.add(1, (*prompt, 1, 2, 3), max_tokens=3)
    run.run()
    assert run.num_found == 100


def test_a_prompt_with_a_gap_within_its_window_is_computed() -> None:
    run = _Run(num_pages=16, is_sharing=True)
    prompt = tuple(range(40))
    first = run.add(0, prompt, max_tokens=1)
    run.run()
    keys = first.prefix_hash.keys(prompt, 10) if first.prefix_hash else []
    run.cache.pages.forget_keys(keys[8:9])
    run.add(1, prompt, max_tokens=1)
    run.run()
    assert run.num_found == 32, "page 8 is computed again, and page 9 with the last token"
