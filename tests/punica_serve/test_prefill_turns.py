"""Which prompts come first in a step's prefills."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis.strategies import integers, lists, sampled_from

from punica_serve.base_model.prefill_budget import prefill_budget_of
from punica_serve.prefill_chunks import PrefillBudget
from punica_serve.prefill_turns import PrefillTurns
from punica_serve.shapes import shape_of

BUDGET = 512
EQUAL_COSTS = PrefillBudget(BUDGET)
LLAMA = prefill_budget_of(shape_of("llama-2-7b"), BUDGET)


@dataclass(frozen=True)
class Prompt:
    name: str
    num_uncached: int
    num_cached: int = 0


def turns_of(turns: PrefillTurns, prompts: list[Prompt], count: int) -> str:
    """The first prompt of so many steps, in none of which anything comes or ends."""
    names = ""
    for _ in range(count):
        first = turns.order(prompts)[0]
        turns.take(prompts, first)
        names += first.name
    return names


def test_the_one_that_needs_the_fewest_steps_and_the_oldest_take_turns() -> None:
    turns = PrefillTurns(EQUAL_COSTS)
    prompts = [Prompt("L", 32_000), Prompt("m", 2_000), Prompt("s", 100), Prompt("t", 50)]
    assert turns_of(turns, prompts[:1], 3) == "LLL"
    assert turns_of(turns, prompts[:2], 4) == "mLmL"
    assert turns_of(turns, prompts, 4) == "sLsL", "t needs as many steps as s, which is older"
    assert "".join(prompt.name for prompt in turns.order(prompts)) == "stmL"


def test_the_turn_stays_the_oldests_until_it_comes_first() -> None:
    """It may lack pages for its chunk, and another goes."""
    turns = PrefillTurns(EQUAL_COSTS)
    prompts = [Prompt("L", 32_000), Prompt("s", 100), Prompt("t", 50)]
    for first in prompts[1:]:
        turns.take(prompts, first)
        assert turns.order(prompts)[0].name == "L"
    turns.take(prompts, prompts[0])
    assert turns.order(prompts)[0].name == "s"


def test_a_newcomer_of_one_step_goes_before_longer_ones_if_it_is_not_the_oldests_turn() -> None:
    turns = PrefillTurns(EQUAL_COSTS)
    prompts = [Prompt("L", 32_000), Prompt("s", 100), Prompt("t", 50)]
    assert turns.num_before_newcomer(prompts) == 2
    assert turns.num_before_newcomer(prompts[:1]) == turns.num_before_newcomer([]) == 0
    turns.take(prompts, prompts[1])
    assert turns.num_before_newcomer(prompts[:1]) == 1


def test_a_few_tokens_behind_a_long_context_need_more_steps_than_one() -> None:
    prompts = [Prompt("L", 500, num_cached=31_500), Prompt("s", 512)]
    assert turns_of(PrefillTurns(EQUAL_COSTS), prompts, 2) == "LL"
    assert turns_of(PrefillTurns(LLAMA), prompts, 2) == "sL"


@given(lengths=lists(integers(1, BUDGET), min_size=1), budget=sampled_from([EQUAL_COSTS, LLAMA]))
def test_prompts_of_one_step_go_first_come_first_served(lengths: list[int], budget: PrefillBudget) -> None:
    prompts = [Prompt(str(number), length) for number, length in enumerate(lengths)]
    assert list(PrefillTurns(budget).order(prompts)) == prompts


@given(num_cached=integers(0, 200_000), num_uncached=integers(1, 2 * BUDGET))
def test_a_newer_prompt_goes_first_only_if_the_older_one_does_not_fit_a_step(
    num_cached: int, num_uncached: int
) -> None:
    chunk = LLAMA.longest(num_cached, min(num_uncached, BUDGET), LLAMA.allowance)
    prompts = [Prompt("old", num_uncached, num_cached), Prompt("new", BUDGET)]
    first = PrefillTurns(LLAMA).order(prompts)[0]
    assert first.name == ("old" if chunk == num_uncached else "new")
