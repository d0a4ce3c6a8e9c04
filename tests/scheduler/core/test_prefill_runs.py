"""Runs of prefills are the steps of the engine's rules, many at once."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis.strategies import booleans, integers, lists, sampled_from

from placed_requests import PlacedRequests
from punica_scheduler.core.prefill_queue import DuePrefill
from punica_scheduler.core.prefill_runs import PrefillRun, prefill_runs
from punica_serve.base_model.prefill_budget import prefill_budget_of
from punica_serve.batching_rules import share_budget
from punica_serve.prefill_chunks import PrefillBudget
from punica_serve.prefill_turns import PrefillTurns
from punica_serve.shapes import shape_of

BUDGET = 512
EQUAL_COSTS = PrefillBudget(BUDGET)
LLAMA = prefill_budget_of(shape_of("llama-2-7b"), BUDGET)


def due(lengths: Sequence[int]) -> list[DuePrefill]:
    """By arrival."""
    placed = PlacedRequests("")
    return [DuePrefill(placed.request(prompt=length), 0, 0, length) for length in lengths]


def steps(
    due: list[DuePrefill], budget: PrefillBudget, turns: PrefillTurns | None, max_prefills: int | None
) -> list[PrefillRun]:
    """The same, step by step."""
    found = []
    while due:
        shares = share_budget(turns.order(due) if turns else due, budget, max_prefills=max_prefills)
        if turns:
            turns.take(due, shares[0][0])
        num_tokens = sum(budget.equivalent_tokens(each.num_cached, share) for each, share in shares)
        for each, share in shares:
            each.compute(share)
        found.append(PrefillRun(1, num_tokens, tuple(each.record for each, _ in shares if not each.num_uncached)))
        due[:] = [each for each in due if each.num_uncached]
    return found


def ends(runs: list[PrefillRun]) -> dict[str, tuple[int, float]]:
    """For each request its last step, and the tokens of all steps until then."""
    found, num_steps, num_tokens = dict[str, tuple[int, float]](), 0, 0.0
    for run in runs:
        num_steps += run.num_steps
        num_tokens += run.num_steps * run.num_tokens
        found |= {record.request_id: (num_steps, num_tokens) for record in run.records}
    return found


@pytest.mark.parametrize("lengths", [(100,), (32_000,), (32_000, 160), (9_000, 160, 32_000, 700)], ids=str)
@pytest.mark.parametrize("budget", [EQUAL_COSTS, LLAMA], ids=["equal", "llama"])
def test_long_prompts_take_few_runs(lengths: tuple[int, ...], budget: PrefillBudget) -> None:
    runs = list(prefill_runs(due(lengths), budget, PrefillTurns(budget), 1))
    assert len(runs) <= 3 * len(lengths)
    assert ends(runs).keys() == ends(steps(due(lengths), budget, PrefillTurns(budget), 1)).keys()


@given(
    lengths=lists(integers(1, 3 * BUDGET) | integers(1, 40_000), min_size=1, max_size=8),
    budget=sampled_from([EQUAL_COSTS, LLAMA]),
    max_prefills=sampled_from([1, 2, 8, None]),
    takes_turns=booleans(),
    is_oldest_due=booleans(),
)
def test_each_prompt_ends_with_the_step_that_the_rules_give_it(
    lengths: list[int], budget: PrefillBudget, max_prefills: int | None, takes_turns: bool, is_oldest_due: bool
) -> None:
    def turns() -> PrefillTurns | None:
        if not takes_turns:
            return None
        made = PrefillTurns(budget)
        made.take([0], 1 if is_oldest_due else 0)  # type: ignore[type-var]
        return made

    found = ends(list(prefill_runs(due(lengths), budget, turns(), max_prefills)))
    expected = ends(steps(due(lengths), budget, turns(), max_prefills))
    assert found.keys() == expected.keys()
    for request_id, (num_steps, num_tokens) in expected.items():
        if budget is EQUAL_COSTS and max_prefills == 1:
            assert found[request_id] == (num_steps, num_tokens)
        else:  # a chunk that shares a step moves the ends of those behind it
            assert found[request_id][0] == pytest.approx(num_steps, rel=0.03, abs=3)
            assert found[request_id][1] == pytest.approx(num_tokens, rel=0.03, abs=3 * BUDGET)
