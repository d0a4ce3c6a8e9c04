"""A step of a simulated GPU: which prefills it runs, and with how many decodes."""

from collections.abc import Iterable
from typing import NamedTuple

from punica_serve.batching_rules import share_budget
from punica_serve.prefill_chunks import PrefillBudget
from punica_serve.simulation.row import Row
from punica_serve.simulation.row_pages import RowPages


class Prefill(NamedTuple):
    """A part of a prompt, or all of it."""

    row: Row
    num_tokens: int


class PlannedStep(NamedTuple):
    """A running step. With nothing to run it only reports preemptions."""

    prefills: tuple[Prefill, ...]
    num_decodes: int
    num_adapters: int
    duration_s: float
    preempted: tuple[int, ...]

    @property
    def batch_size(self) -> int:
        return len(self.prefills) + self.num_decodes

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens of all prefills together."""
        return sum([prefill.num_tokens for prefill in self.prefills])


def prefills_of(
    prefilling: Iterable[Row], pages: RowPages, budget: PrefillBudget, max_prefills: int | None
) -> tuple[Prefill, ...]:
    """The prefills of a step, by the engine's rule.

    ``prefilling``: those that could prefill, in the order in which they are looked at; ``pages``: theirs.
    """
    prepared = filter(pages.prepare, prefilling)
    shares = share_budget(prepared, budget, max_prefills=max_prefills, awaits=pages.prefixes.awaits)
    return tuple([Prefill(row, num_tokens) for row, num_tokens in shares])


def equivalent_tokens(prefills: Iterable[Prefill], budget: PrefillBudget) -> float:
    """Tokens at the beginnings of prompts that cost as much as these prefills, which have not been counted yet."""
    return sum([budget.equivalent_tokens(row.num_cached, num_tokens) for row, num_tokens in prefills])
