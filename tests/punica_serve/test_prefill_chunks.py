"""Chunks of long prompts: their lengths by the context behind which they stand."""

import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists

from punica_serve.base_model.prefill_budget import chunk_costs_of
from punica_serve.prefill_chunks import REFERENCE_CONTEXT, ChunkCosts, PrefillBudget
from punica_serve.shapes import shape_of

COSTS = ChunkCosts(dense=100.0, attention=((None, 0.05), (64, 0.05)))
BUDGET = 512


def chunks(costs: ChunkCosts, num_tokens: int) -> list[int]:
    """The chunks of one prompt."""
    lengths: list[int] = []
    while (start := sum(lengths)) < num_tokens:
        lengths.append(costs.longest(start, min(BUDGET, num_tokens - start), costs.allowance(BUDGET)))
    return lengths


@pytest.mark.parametrize(("shape", "num_steps"), [("llama-2-7b", 158), ("llama-3.1-8b", 152)])
def test_a_long_prompt_takes_more_and_shorter_chunks(shape: str, num_steps: int) -> None:
    lengths = chunks(chunk_costs_of(shape_of(shape)), 32_000)
    assert len(lengths) == num_steps
    assert lengths[:4] == [BUDGET] * 4
    assert lengths[:-1] == sorted(lengths[:-1], reverse=True)
    assert 100 < lengths[-2] < 200


def test_a_prompt_within_the_reference_context_is_cut_at_the_budget() -> None:
    assert chunks(COSTS, REFERENCE_CONTEXT + BUDGET) == [BUDGET] * 5


@given(start=integers(0, 200_000), num_uncached=integers(1, 200_000))
def test_no_chunk_is_dearer_than_one_at_the_reference_context_or_needlessly_short(
    start: int, num_uncached: int
) -> None:
    allowance, most = COSTS.allowance(BUDGET), min(num_uncached, BUDGET)
    length = COSTS.longest(start, most, allowance)
    assert 1 <= length <= most
    assert length <= 16 or COSTS.cost(start, length) <= allowance
    assert length == most or (length % 16 == 0 and COSTS.cost(start, length + 16) > allowance)


def test_a_layer_with_a_window_costs_no_more_beyond_it() -> None:
    windowed = ChunkCosts(100.0, ((64, 1.0),))
    assert windowed.cost(10_000, 16) == windowed.cost(100_000, 16)


@given(num_tokens=integers(1, BUDGET), starts=lists(integers(0, 200_000), min_size=2, max_size=2))
def test_a_chunk_behind_a_context_is_worth_more_tokens_than_one_at_the_beginning(
    num_tokens: int, starts: list[int]
) -> None:
    budget, (near, far) = PrefillBudget(BUDGET, COSTS), sorted(starts)
    assert num_tokens == budget.equivalent_tokens(0, num_tokens)
    assert num_tokens <= budget.equivalent_tokens(near, num_tokens) <= budget.equivalent_tokens(far, num_tokens)
    assert PrefillBudget(BUDGET).equivalent_tokens(far, num_tokens) == num_tokens
