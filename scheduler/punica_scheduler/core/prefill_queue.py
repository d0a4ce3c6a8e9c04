"""The prefills that a GPU has still to run, and when each may run at the earliest."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from punica_scheduler.core.request import RequestRecord
from punica_serve.errors.invariants import require


class DuePrefill(NamedTuple):
    record: RequestRecord
    #: The GPU's first step that may begin with the request.
    next_step: int
    #: The first that may prefill it: a copy of its adapter may come before.
    step: int


class PrefillQueue:
    """Requests placed on a GPU that have no token of this assignment yet, by the counters of their assignments."""

    __slots__ = ("_due",)

    def __init__(self) -> None:
        self._due: dict[int, DuePrefill] = {}

    def __len__(self) -> int:
        return len(self._due)

    def __iter__(self) -> Iterator[DuePrefill]:
        """In the order of their placement."""
        return iter(self._due.values())

    def num_tokens_from(self, next_step: int) -> int:
        """Tokens of those whose prefills have not begun before that step: a newcomer's can share a step with them."""
        return sum([due.record.num_tokens for due in self._due.values() if due.next_step >= next_step])

    def add(self, counter: int, record: RequestRecord, next_step: int, step: int) -> None:
        self._due[counter] = DuePrefill(record, next_step, step)

    def remove(self, counter: int) -> RequestRecord | None:
        """The request got a token, or leaves. None if it had one before. Call it before the token is counted."""
        due = self._due.pop(counter, None)
        return due.record if due else None

    def check_invariants(self, records: Mapping[int, RequestRecord]) -> None:
        """``records`` are those without a token of this assignment. AssertionError is a bug of ours."""
        require(self._due.keys() == records.keys(), "the prefills of a GPU")
