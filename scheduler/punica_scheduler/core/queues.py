"""Queue policies: in which order waiting requests get a GPU. One class for each."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from punica_scheduler.core.arrival_queue import ArrivalQueue
from punica_scheduler.core.deadline_queue import DeadlineQueue
from punica_scheduler.core.request import RequestRecord
from punica_scheduler.core.vtc_queue import VtcQueue


class RequestQueue(Protocol):
    """Requests that may run beside others on any GPU. Only the head is ever placed, so a head blocks all behind it."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[RequestRecord]: ...

    @property
    def head(self) -> RequestRecord | None:
        """The next request. It may change at any addition, removal and charge."""

    def add(self, record: RequestRecord) -> None: ...

    def remove(self, record: RequestRecord) -> None:
        """Takes out a record that is in the queue."""

    def charge(self, records: Iterable[RequestRecord]) -> None:
        """Charges the tenants of these requests for the service since they were last charged."""

    def check_invariants(self) -> None: ...


class FcfsQueue(ArrivalQueue):
    """First come, first served, whatever anyone has had already."""

    def charge(self, records: Iterable[RequestRecord]) -> None:
        pass


#: Each makes an empty queue, given for how long a request may wait, in nanoseconds.
QUEUES: dict[str, Callable[[int], RequestQueue]] = {
    "fcfs": lambda _: FcfsQueue(),
    "vtc": lambda _: VtcQueue(),
    "deadline": DeadlineQueue,
}
