"""A queue that keeps promises of first tokens: the earliest deadline is next (EDF).

A request's deadline is its arrival plus the time promised for its first token. One without a promise has until the
queue's timeout. A longer promise is no worse than none, so it counts as the timeout, too.

- Requests that have a token come before all others, by arrival. They lost their GPU, their clients are reading, and
  every second of the wait breaks into their time per token. There are never more of them than were running, so they
  can't keep others out.
- No newcomer can overtake a request for ever: deadlines don't move, and each newcomer's lies later than its arrival.
  A request without a promise comes before all newcomers once it has waited for the timeout less their promise. In a
  cluster that is overloaded for that long by promises alone, those without one are the requests that time out.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator

from punica_scheduler.core.request import RequestRecord
from punica_serve.errors.invariants import require

#: Whether it awaits its first token; then the deadline, or the arrival; then the id, which makes the order total.
_Key = tuple[bool, int, str]


def deadline_key(queue_timeout_ns: int) -> Callable[[RequestRecord], _Key]:
    """The order of a queue with this timeout. No key changes while its request is queued."""

    def key(record: RequestRecord) -> _Key:
        arrival_ns, request_id = record.arrival
        if record.num_generated:
            return False, arrival_ns, request_id
        slo = record.request.slo
        wait_ns = queue_timeout_ns
        if slo is not None and slo.first_token_s is not None:
            wait_ns = min(wait_ns, round(slo.first_token_s * 1e9))
        return True, arrival_ns + wait_ns, request_id

    return key


class DeadlineQueue:
    """Sorted by ``deadline_key``."""

    def __init__(self, queue_timeout_ns: int) -> None:
        self._key = deadline_key(queue_timeout_ns)
        self._records: list[RequestRecord] = []

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[RequestRecord]:
        return iter(self._records)

    @property
    def head(self) -> RequestRecord | None:
        return self._records[0] if self._records else None

    def add(self, record: RequestRecord) -> None:
        insort(self._records, record, key=self._key)

    def remove(self, record: RequestRecord) -> None:
        """Takes out a record that is in the queue."""
        index = bisect_left(self._records, self._key(record), key=self._key)
        is_there = index < len(self._records) and self._records[index] is record
        require(is_there, f"request {record.request_id} is not at its place in the queue")
        del self._records[index]

    def charge(self, records: Iterable[RequestRecord]) -> None:
        """Deadlines do not depend on service."""

    def check_invariants(self) -> None:
        keys = list(map(self._key, self._records))
        require(keys == sorted(set(keys)), "the deadlines of a queue are out of order, or a request is there twice")
