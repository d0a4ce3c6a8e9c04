"""Requests that wait for a GPU, first come, first served."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import chain
from operator import attrgetter

from punica_scheduler.request import RequestRecord

_by_arrival = attrgetter("arrival")


class FcfsQueue:
    """Two lines, one of suspects; neither waits for the other.

    Each is sorted by arrival at the frontend, so that an evicted request comes back to the place it once had.
    """

    def __init__(self) -> None:
        self._ordinary: list[RequestRecord] = []
        self._suspects: list[RequestRecord] = []

    def __len__(self) -> int:
        return len(self._ordinary) + len(self._suspects)

    def __iter__(self) -> Iterator[RequestRecord]:
        return chain(self._ordinary, self._suspects)

    @property
    def head(self) -> RequestRecord | None:
        """The first that may run beside others."""
        return self._ordinary[0] if self._ordinary else None

    @property
    def first_suspect(self) -> RequestRecord | None:
        """The first that must run alone."""
        return self._suspects[0] if self._suspects else None

    def add(self, record: RequestRecord) -> None:
        insort(self._line_of(record), record, key=_by_arrival)

    def remove(self, record: RequestRecord) -> None:
        """Takes out a record that is in the queue."""
        line = self._line_of(record)
        index = bisect_left(line, record.arrival, key=_by_arrival)
        assert line[index] is record, f"request {record.request_id} is not at its place in the queue"
        del line[index]

    def check_invariants(self) -> None:
        for line in (self._ordinary, self._suspects):
            assert line == sorted(line, key=_by_arrival), "a line is out of order"
            assert all(self._line_of(record) is line for record in line), "a request waits in the wrong line"

    def _line_of(self, record: RequestRecord) -> list[RequestRecord]:
        """A request becomes a suspect, and is acquitted, only while it is on a GPU."""
        return self._suspects if record.is_suspect else self._ordinary
