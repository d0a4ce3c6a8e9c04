"""Page tables that are converted step by step, against those that are read anew."""

from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from punica_serve.batching_rules import pages_for
from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.batching.step_plan import StepPlan
from punica_serve.engine.batching.step_planner import StepPlanner
from punica_serve.engine.cuda.batch_bucket import BatchBucket
from punica_serve.engine.cuda.page_arrays import PageArrays
from punica_serve.engine.cuda.step_pages import lay_out_pages
from punica_serve.paging.page_rule import first_kept_page
from punica_serve.paging.prefix_hash import prefix_hash
from punica_serve.prefill_chunks import PrefillBudget
from punica_serve.protocol import PrefixCaching, Request, SamplingParams
from tiny_config import tiny_config

PAGE_SIZE, BUCKET = 4, BatchBucket(8, 4, max_prefills=2)


def test_a_table_that_has_grown_is_extended_and_another_list_is_read_anew() -> None:
    arrays, table = PageArrays(), [5, 9]
    (first,) = arrays.of([table], [2])
    table += [1, 3]
    assert [array.tolist() for array in arrays.of([table], [3])] == [[5, 9, 1]]
    assert [array.tolist() for array in arrays.of([[7], table], [1, 2])] == [[7], [5, 9]]
    assert first.tolist() == [5, 9] and first.dtype == np.int32
    assert [array.tolist() for array in arrays.of([[6, 9, 1, 3]], [3])] == [[6, 9, 1]]


def test_only_pages_that_are_new_are_converted() -> None:
    """What is known is not read again: a table that breaks the promise to grow alone is not noticed."""
    arrays, table = PageArrays(), [5, 9, 1]
    arrays.of([table], [2])
    table[0] = 8
    assert arrays.of([table], [3])[0].tolist() == [5, 9, 1]
    arrays.of([], [])
    assert arrays.of([table], [3])[0].tolist() == [8, 9, 1], "tables that the newest step lacks are forgotten"


def test_a_table_with_too_few_pages_is_refused() -> None:
    with pytest.raises(ValueError, match="2 pages has 1"):
        PageArrays().of([[7]], [2])


class _History:
    """A planner with few pages whose requests share prefixes, and the arrays that its steps keep."""

    def __init__(self, window: int | None) -> None:
        model = tiny_config(windows=(window, window))
        self.cache = KvCache(
            model, num_pages=24, page_size=PAGE_SIZE, dtype=torch.float32, device=torch.device("cpu"), is_sharing=True
        )
        self.planner = StepPlanner(self.cache, max_batch_size=4, prefill_budget=PrefillBudget(8), max_prefills=2)
        self.arrays = PageArrays()
        self._num_added = 0

    def add(self, prefix: int, length: int) -> None:
        """Prompts of one prefix begin alike."""
        prompt = tuple(range(prefix, prefix + length))
        request = Request(f"r{self._num_added}", self._num_added, prompt, SamplingParams(max_tokens=20))
        self._num_added += 1
        sequence = Sequence.of(request, 64)
        sequence.prefix_hash = prefix_hash(request, PrefixCaching("model"), PAGE_SIZE)
        self.planner.add(sequence)

    def remove(self, place: int) -> None:
        sequences = [*self.planner.running, *self.planner.waiting]
        if sequences:
            self.planner.remove(sequences[place % len(sequences)])

    def step(self, absent: int) -> None:
        """The adapter of one request in so many is not there."""
        while sequence := self.planner.next_admissible():
            self.planner.admit(sequence)
        plan, _ = self.planner.plan(lambda sequence: sequence.request.arrival_ns % 3 != absent)
        if plan is None:
            return
        self._check(plan)
        plan.advance()
        for sequence in plan.sampled:
            sequence.num_in_flight = 0
            sequence.token_ids.append(1)
            if len(sequence.token_ids) >= sequence.max_length:
                self.planner.remove(sequence)

    def _check(self, plan: StepPlan) -> None:
        window = self.cache.window
        pages = lay_out_pages(plan, BUCKET, self.arrays, page_size=PAGE_SIZE, window=window)
        anew = lay_out_pages(plan, BUCKET, PageArrays(), page_size=PAGE_SIZE, window=window)
        assert pages.slot_mapping.tolist() == anew.slot_mapping.tolist()
        decodes = [(sequence, sequence.num_cached, sequence.num_cached + 1) for sequence in plan.decodes]
        contexts = [*decodes, *((chunk.sequence, chunk.start, chunk.end) for chunk in plan.prefills)]
        named = [
            sequence.pages[first_kept_page(start, PAGE_SIZE, window) : pages_for(end, PAGE_SIZE)]
            for sequence, start, end in contexts
        ]
        assert pages.kv_pages.tolist() == [*chain.from_iterable(named)]
        assert np.diff(np.append(pages.decodes.starts[:-1], pages.prefill.starts)).tolist() == [*map(len, named)]


_EVENTS = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 1), st.integers(1, 30)),
    st.tuples(st.just("remove"), st.integers(0, 9)),
    st.tuples(st.just("step"), st.integers(0, 4)),
    st.tuples(st.just("step"), st.just(4)),
)


@given(st.sampled_from([None, 5, 9]), st.lists(_EVENTS, max_size=60))
def test_tables_of_any_history_are_those_of_the_sequences(window: int | None, events: list[tuple[str, ...]]) -> None:
    history = _History(window)
    for name, *values in events:
        getattr(history, name)(*values)
    for _ in range(20):
        history.step(4)
