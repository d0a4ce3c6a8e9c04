"""The prefills that a GPU has still to run, how far they are, and when each may run at the earliest."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from punica_scheduler.core.request import RequestRecord
from punica_serve.errors.invariants import require
from punica_serve.prefill_chunks import PrefillBudget
from punica_serve.prefill_turns import PrefillTurns


@dataclass(slots=True, eq=False)
class DuePrefill:
    """A request without a token of this assignment."""

    record: RequestRecord
    #: The GPU's first step that may begin with the request.
    next_step: int
    #: The first that may prefill it: a copy of its adapter may come before.
    step: int
    #: Tokens whose keys and values are to be computed; and those that chunks have computed, as far as reports tell.
    num_uncached: int
    num_cached: int = 0

    def copy(self) -> "DuePrefill":
        return DuePrefill(self.record, self.next_step, self.step, self.num_uncached, self.num_cached)

    def compute(self, num_tokens: int) -> None:
        """A chunk of so many tokens."""
        self.num_uncached -= num_tokens
        self.num_cached += num_tokens


class PrefillQueue:
    """Requests placed on a GPU that have no token of this assignment yet, by the counters of their assignments.

    Reports tell how many prompt tokens a step computed, and not whose. Those that do not belong to first tokens are a
    chunk of the prompt whose turn it is.
    """

    __slots__ = ("_done", "_due", "_turns", "budget")

    def __init__(self, budget: PrefillBudget) -> None:
        """``budget``: the GPU's, by which prompts are chunked."""
        self.budget = budget
        self._turns = PrefillTurns(budget)
        self._due: dict[int, DuePrefill] = {}
        #: Those whose first tokens have come since the last ``stepped``.
        self._done: list[DuePrefill] = []

    def __len__(self) -> int:
        return len(self._due)

    def __iter__(self) -> Iterator[DuePrefill]:
        """In the order of their placement."""
        return iter(self._due.values())

    @property
    def turns(self) -> PrefillTurns:
        """A copy of the turns, which the caller may change."""
        return self._turns.copy()

    def num_tokens_from(self, next_step: int) -> int:
        """Tokens of those whose prefills have not begun before that step: a newcomer's can share a step with them."""
        return sum([due.record.num_tokens for due in self._due.values() if due.next_step >= next_step])

    def add(self, counter: int, record: RequestRecord, next_step: int, step: int) -> None:
        self._due[counter] = DuePrefill(record, next_step, step, record.num_tokens)

    def begun(self, counter: int) -> RequestRecord | None:
        """The request is about to get a token. None if it had one before."""
        due = self._due.pop(counter, None)
        if due is None:
            return None
        self._done.append(due)
        return due.record

    def remove(self, counter: int) -> None:
        """The request leaves."""
        self._due.pop(counter, None)

    def stepped(self, step: int, num_tokens: int) -> None:
        """A step computed so many prompt tokens. Those that got their first tokens by it have begun."""
        if not num_tokens and not self._done:
            return
        done, self._done = self._done, []
        waiting = [due for due in self._due.values() if due.next_step <= step]
        # A last token alone is a decode.
        prefilling = sorted([due for due in (*waiting, *done) if due.num_uncached > 1], key=_by_arrival)
        if not num_tokens or not prefilling:
            return
        in_turn = self._turns.order(prefilling)
        self._turns.take(prefilling, in_turn[0])
        num_tokens -= sum([due.num_uncached for due in done if due.num_uncached > 1])
        for due in in_turn:
            if num_tokens > 0 and due not in done:
                num_computed = min(num_tokens, due.num_uncached - 1)
                due.compute(num_computed)
                num_tokens -= num_computed

    def check_invariants(self, records: Mapping[int, RequestRecord]) -> None:
        """``records`` are those without a token of this assignment. AssertionError is a bug of ours."""
        require(self._due.keys() == records.keys(), "the prefills of a GPU")
        require(all(due.num_uncached > 0 for due in self._due.values()), "a prompt is computed and has no token")


def _by_arrival(due: DuePrefill) -> tuple[int, str]:
    return due.record.arrival
