"""Requests in order of arrival."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from punica_scheduler.core.request import RequestRecord
from punica_serve.errors.invariants import require

_by_arrival = attrgetter("arrival")


class ArrivalQueue:
    """Sorted by arrival at the frontend, so a preempted request returns to its old position."""

    def __init__(self) -> None:
        self._records: list[RequestRecord] = []

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[RequestRecord]:
        return iter(self._records)

    @property
    def head(self) -> RequestRecord | None:
        return self._records[0] if self._records else None

    def add(self, record: RequestRecord) -> None:
        insort(self._records, record, key=_by_arrival)

    def remove(self, record: RequestRecord) -> None:
        """Takes out a record that is in the queue."""
        index = bisect_left(self._records, record.arrival, key=_by_arrival)
        require(self._records[index] is record, f"request {record.request_id} is not at its place in the queue")
        del self._records[index]

    def check_invariants(self) -> None:
        require(self._records == sorted(self._records, key=_by_arrival), "a queue is out of order")
