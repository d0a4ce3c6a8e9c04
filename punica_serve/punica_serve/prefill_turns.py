"""The order of prefills, step by step, in which a short prompt never waits for all of a long one. Pure.

Steps take turns: in one, the prompts that need the fewest steps come first; in the next, the oldest does. So a prompt
is done after at most twice the steps that it would take first come, first served. Where no prompt needs more steps than
a newer one, as where each fits one step or all are of one length, every turn is first come, first served.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from punica_serve.prefill_chunks import PrefillBudget


class _Prefilling(Protocol):
    @property
    def num_uncached(self) -> int: ...

    @property
    def num_cached(self) -> int: ...


PrefillingT = TypeVar("PrefillingT", bound=_Prefilling)


class PrefillTurns:
    """The engine's planner and a simulated GPU have one each, and ask it in every step that prefills."""

    def __init__(self, budget: PrefillBudget) -> None:
        """``budget``: the one by which prompts are chunked."""
        self._budget = budget
        #: Another went before the oldest in the newest step that prefilled, so the next one is the oldest's.
        self._is_oldest_due = False

    def copy(self) -> "PrefillTurns":
        copied = PrefillTurns(self._budget)
        copied._is_oldest_due = self._is_oldest_due
        return copied

    def order(self, prefilling: Sequence[PrefillingT]) -> Sequence[PrefillingT]:
        """The requests that could prefill, by arrival, in the order in which the next step looks at them.

        Among those that need as many steps, the oldest comes first.
        """
        if self._is_oldest_due or len(prefilling) < 2:
            return prefilling
        return sorted(prefilling, key=self._num_steps)

    def shortest(self, prefilling: Iterable[PrefillingT]) -> PrefillingT:
        """The one that needs the fewest steps; of those, which come by arrival, the oldest."""
        return min(prefilling, key=self._num_steps)

    def take(self, prefilling: Sequence[PrefillingT], first: PrefillingT) -> None:
        """Counts a step that prefills ``first`` before all others that could prefill, which come by arrival."""
        self._is_oldest_due = first is not prefilling[0]

    def num_before_newcomer(self, prefilling: Sequence[PrefillingT]) -> int:
        """How many go before a request that comes now and needs one step."""
        if self._is_oldest_due:
            return len(prefilling)
        return sum([self._num_steps(request) == 1 for request in prefilling])

    def _num_steps(self, request: _Prefilling) -> int:
        return self._budget.num_steps(request.num_cached, request.num_uncached)
