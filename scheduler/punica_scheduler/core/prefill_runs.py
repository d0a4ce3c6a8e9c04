"""The prefills that a GPU has before it, step by step, if nothing comes or ends meanwhile.

Prompts take turns and are cut into chunks as in the engine, by the same functions. Many steps in a row that only go on
with long prompts are one run, so that a prompt of 32,000 tokens costs the scheduler no more than a short one.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from punica_scheduler.core.prefill_queue import DuePrefill
from punica_scheduler.core.request import RequestRecord
from punica_serve.batching_rules import share_budget
from punica_serve.prefill_chunks import PrefillBudget
from punica_serve.prefill_turns import PrefillTurns


class PrefillRun(NamedTuple):
    """Steps of about equal length that follow each other."""

    num_steps: int
    #: Tokens at the beginnings of prompts to which the prefills of each step are equivalent.
    num_tokens: float
    #: They get their next tokens at the end of the last step.
    records: tuple[RequestRecord, ...]


def prefill_runs(
    due: list[DuePrefill], budget: PrefillBudget, turns: PrefillTurns | None, max_prefills: int | None
) -> Iterator[PrefillRun]:
    """``due`` come by arrival. They and ``turns`` are changed. ``turns`` of None: first come, first served."""
    while due:
        in_turn = turns.order(due) if turns else due
        shares = share_budget(in_turn, budget, max_prefills=max_prefills)
        first, num_tokens = shares[0]
        num_chunks, is_oldest = 0, first is due[0]
        if num_tokens < first.num_uncached and len(shares) == 1 and (turns is None or first is turns.shortest(due)):
            num_chunks = budget.num_cut(first.num_cached, first.num_uncached)
        if turns and (is_oldest or not num_chunks):  # two that alternate leave it the turn of the first
            turns.take(due, first)
        if num_chunks:
            yield _alternate([first] if is_oldest else [first, due[0]], num_chunks, budget)
        else:
            yield _step(due, shares, budget)


def _alternate(due: Sequence[DuePrefill], num_chunks: int, budget: PrefillBudget) -> PrefillRun:
    """The steps in which these take turns, or one goes on alone, up to the last chunk of the first: it needs the fewest
    steps of all, and goes on doing so.
    """
    num_tokens = [_advance(each, num_chunks, budget) for each in due]
    return PrefillRun(num_chunks * len(due), sum(num_tokens) / len(due), ())


def _advance(due: DuePrefill, num_chunks: int, budget: PrefillBudget) -> float:
    """Counts so many chunks; returns the tokens to which each is equivalent."""
    start = due.num_cached
    due.compute(min(budget.end_of(start, num_chunks) - start, due.num_uncached - 1))
    return budget.equivalent_tokens(start, due.num_cached - start, num_chunks)


def _step(due: list[DuePrefill], shares: list[tuple[DuePrefill, int]], budget: PrefillBudget) -> PrefillRun:
    """One step, after which those that are done are due no more."""
    num_tokens = sum([budget.equivalent_tokens(each.num_cached, share) for each, share in shares])
    for each, share in shares:
        each.compute(share)
    done = [each for each, _ in shares if not each.num_uncached]
    for each in done:
        due.remove(each)
    return PrefillRun(1, num_tokens, tuple([each.record for each in done]))
