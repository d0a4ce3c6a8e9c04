"""The prefills that a GPU has still to run, and when each may run at the earliest."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from punica_scheduler.core.request import RequestRecord
from punica_serve.errors.invariants import require


class DuePrefill(NamedTuple):
    record: RequestRecord
    #: Number of the GPU's step.
    step: int


class PrefillQueue:
    """Requests placed on a GPU that have no token of this assignment yet, by the counters of their assignments."""

    __slots__ = ("_due", "num_tokens")

    def __init__(self) -> None:
        self._due: dict[int, DuePrefill] = {}
        #: Tokens of all requests together.
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._due)

    def __iter__(self) -> Iterator[DuePrefill]:
        """In the order of their placement."""
        return iter(self._due.values())

    def add(self, counter: int, record: RequestRecord, step: int) -> None:
        self._due[counter] = DuePrefill(record, step)
        self.num_tokens += record.num_tokens

    def remove(self, counter: int) -> RequestRecord | None:
        """The request got a token, or leaves. None if it had one before. Call it before the token is counted."""
        due = self._due.pop(counter, None)
        if due is None:
            return None
        self.num_tokens -= due.record.num_tokens
        return due.record

    def check_invariants(self, records: Mapping[int, RequestRecord]) -> None:
        """``records`` are those without a token of this assignment. AssertionError is a bug of ours."""
        require(self._due.keys() == records.keys(), "the prefills of a GPU")
        num_tokens = sum(record.num_tokens for record in records.values())
        require(self.num_tokens == num_tokens, "the tokens to prefill of a GPU")
