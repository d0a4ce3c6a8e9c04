"""Requests in order of arrival."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from punica_scheduler.request import RequestRecord

_by_arrival = attrgetter("arrival")


class Line:
    """Sorted by arrival at the frontend, so that an evicted request comes back to the place it once had."""

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
        """Takes out a record that is in the line."""
        index = bisect_left(self._records, record.arrival, key=_by_arrival)
        assert self._records[index] is record, f"request {record.request_id} is not at its place in the line"
        del self._records[index]

    def check_invariants(self) -> None:
        assert self._records == sorted(self._records, key=_by_arrival), "a line is out of order"
